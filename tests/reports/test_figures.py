"""Figures of trained models, for papers and notebooks."""

import warnings

import numpy as np
import pytest
from small_configs import PAPER
from small_models import trained_model

from transformer.inference.attention_maps import Token, attention_of
from transformer.inference.logit_lens import logit_lens
from transformer.inference.model import Model
from transformer.inference.word_vectors import principal_components, word_vectors
from transformer.reports import figures
from transformer.reports.figures import (
    attention_figure,
    draw_attention,
    embeddings_figure,
    logit_lens_figure,
    masks_figure,
    positions_figure,
    positions_of,
    schedule_figure,
)
from transformer.reports.pages import fonts_for
from transformer.system.errors import UserError


@pytest.fixture(scope="module")
def model(random_params):
    return trained_model(random_params, num_decoder_layers=2)


def images(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_a_notebook_shows_the_weights(model):
    found = attention_of(model, "one two", "two")
    figure = attention_figure(Model(model), "one two", "two", attention="encoder", heads=[2])
    assert figure._repr_png_().startswith(b"\x89PNG")
    (shown,) = images(figure)
    np.testing.assert_allclose(shown, found.maps["encoder"][0, 1])
    assert figure.axes[0].get_title() == "layer 1, head 2"
    last = draw_attention(found, None, None, None, False)
    np.testing.assert_allclose(images(last), found.maps["cross"][1])
    assert last.fonts == (["DejaVu Sans"], True)
    for layer, heads, message in ((3, None, "layer 3 is asked"), (None, [0], "head 0 is asked")):
        with pytest.raises(UserError, match=f"{message} for; the model has 1 to 2"):
            draw_attention(found, None, layer, heads, False)
    # Letters that no font has are text in an SVG.
    words = [Token(text, i, text) for i, text in enumerate(("$x$", "\U000e0041\u0378", "two"))]
    found = found._replace(source=words, maps={"encoder": np.ones((1, 1, 3, 3))})
    figure = draw_attention(found, None, None, None, True)
    assert not figure.fonts.complete
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph")
        assert "two" in figure.drawn("svg").decode()
    assert fonts_for("Größe\u200d").complete


def test_positions_by_hand(model, random_params):
    table = positions_of(model, 5)
    assert table.shape == (5, 14)
    np.testing.assert_allclose(table[1, :2], [np.sin(1), np.cos(1)], rtol=1e-6)
    assert len(images(positions_figure(model))) == 2
    learned = trained_model(random_params, positions="learned")
    np.testing.assert_array_equal(positions_of(learned, 5), learned.params["source_positions"][:5])


def test_masks_by_hand():
    source = [Token(text, i, text) for i, text in enumerate(("one", "EOS"))]
    target = [Token(text, i, text) for i, text in enumerate(("a", "b", "EOS"))]
    encoder, decoder, cross, packed = images(masks_figure(source, target))
    assert encoder.astype(int).tolist() == 2 * [[1, 1, 0, 0, 0]] + 3 * [[0] * 5]
    assert decoder[:3, :3].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert decoder[3:].sum() == decoder[:, 3:].sum() == 0
    assert cross[:3, :2].all()
    assert cross.sum() == 6
    assert packed.sum() == 15 + 10
    assert len(images(masks_figure(source, []))) == 2  # an encoder alone has no target
    assert len(images(masks_figure([], target))) == 2  # nor a decoder alone a source


def test_the_learning_rate_peaks_where_warm_up_ends():
    own, lecture = schedule_figure(PAPER).axes
    steps, rates = own.lines[0].get_data()
    assert abs(steps[np.argmax(rates)] - PAPER.optimizer.warmup_steps) < 300
    assert max(rates) == pytest.approx((512 * 4000) ** -0.5, rel=0.02)
    assert len(lecture.lines) == len(figures.EQUATION_3)


def test_words_as_points(model):
    """A word that is given twice is one point."""
    figure = embeddings_figure(Model(model), ["one", "two", "three", "$x$", "one"])
    (axes,) = figure.axes
    (points,) = axes.lines
    expected, _ = principal_components(word_vectors(model, ["one", "two", "three", "$x$"]))
    np.testing.assert_allclose(points.get_xydata(), expected)
    assert [text.get_text() for text in axes.texts] == ["one", "two", "three", r"\$x\$"]


def test_layers_as_rows(model):
    found = logit_lens(model, "one two", "two")
    figure = logit_lens_figure(model, "one two", "two")
    (shown,) = images(figure)
    np.testing.assert_allclose(shown, found.probabilities_LT)
    axes = figure.axes[0]
    first = f"{found.texts[0][0]}\n{found.probabilities_LT[0, 0]:.2f}"
    assert axes.texts[0].get_text() == first.replace("$", r"\$")
    assert len(axes.texts) == found.tokens_LT.size
    names = ["embedding", "layer 1", "layer 2"]
    assert [x.get_text() for x in axes.get_yticklabels()] == names
    assert figure.drawn("svg").startswith(b"<?xml")
