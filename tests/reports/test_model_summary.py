"""The tree of a model's modules, their numbers, and the diagram of it."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest
from small_configs import MODEL, PAPER, sizes_of

from transformer.models.family import Sizes, build_model
from transformer.models.functional import num_params
from transformer.reports.diagram import diagram
from transformer.reports.model_summary import abstract_model, summary_of, table
from transformer.runs.run_config import Config

# By family: a preset, and how far its formula may be off.
FAMILIES = {
    "transformer": ("demo", 0),
    "rnn": ("demo_rnn", 0.05),
    "convolutional": ("demo_convs2s", 0),
    "universal": ("demo_universal", 0),
    "bert": ("classification", 0),
    "decoder_only": ("demo_decoder_only", 0),
}
SMALL = dataclasses.replace(PAPER, model=dataclasses.replace(MODEL, num_encoder_layers=3))


def of_preset(name: str):
    config = Config.from_dict(importlib.import_module(f"configs.{name}").get_config().to_dict())
    model = abstract_model(config, 2)
    return config, model, summary_of(config, model, 17)


def small():
    return summary_of(SMALL, build_model(SMALL.model, sizes_of(31)), 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_total_is_that_of_the_family(family):
    preset, tolerance = FAMILIES[family]
    config, model, summary = of_preset(preset)
    assert config.model.family == family
    assert summary.root.parameters == num_params(model.abstract_params())
    size, is_bert = config.tokenizer.vocab_size, family == "bert"
    sizes = Sizes(size, 2 if is_bert else size, not is_bert, 17, 17)
    if family == "decoder_only":  # not the logits of the source, which only training computes
        config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, loss_over="target")
        )
    lengths = np.array([[17 + (family == "decoder_only")], [0 if is_bert else 17]])
    (flops,) = config.family.flops(config.model, sizes, *lengths)
    assert summary.root.flops == pytest.approx(flops / 3, rel=tolerance + 1e-9)
    assert diagram(summary).axes[0].texts


def test_the_rows_by_hand():
    rows = {line[0]: line[1:] for line in table(small())}
    assert rows["    0-2, each"][0] == "EncoderLayer"
    # 2 FLOPs for each of 14 x 11 weights, 5 tokens.
    numbers = "kernel 14 x 11, bias 11", str(14 * 11 + 11), f"{2 * 5 * 14 * 11 / 1e6:,.2f}"
    assert rows["        hidden"] == ["Linear", *numbers]
    each, three = rows["    0-2, each"][2], rows["  encoder_layers"][2]
    assert int(three.replace(",", "")) == 3 * int(each.replace(",", ""))
    names = [line[0].strip() for line in table(small())]
    sublayers = [x for x in names[names.index("decoder_layers") :] if x.endswith("_norm")]
    # As in Figure 1, though keys of the memory are computed before.
    assert sublayers == ["self_attention_norm", "cross_attention_norm", "feed_forward_norm"]
    assert names.index("target_embedding") < names.index("encoder_layers")


def test_attention_has_the_products_of_queries_and_keys():
    (encoder,) = (x for x in small().root.parts if x.name == "encoder_layers")
    attention = next(x for x in encoder.parts[0].parts if x.name == "self_attention")
    projections = sum(x.flops for x in attention.parts)
    assert projections == 4 * 2 * 5 * 14 * 14
    assert attention.flops - projections == 2 * (2 * 5 * 5 * 14)
    assert encoder.flops == 3 * encoder.parts[0].flops


def test_a_convolution_by_hand():
    _, _, summary = of_preset("sagan_cifar10")
    (discriminator,) = (x for x in summary.root.parts if x.name == "discriminator")
    (blocks,) = (x for x in discriminator.parts if x.name == "blocks")
    first = next(x for x in blocks.parts[0].parts if x.name == "conv1")
    # And its spectral normalisation.
    assert first.flops == pytest.approx(2 * 32 * 32 * (3 * 3 * 3) * 64, rel=0.002)


def test_the_diagram_has_the_boxes_of_figure_1():
    figure = diagram(small())
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "encoder_layers: 3 x EncoderLayer" in texts
    assert "decoder_layers: 1 x DecoderLayer" in texts
    assert texts.count("self_attention") == 2
    assert texts.count("cross_attention") == 1
    # One matrix serves both sides and the output.
    for name in ("target_embedding", "target_embedding, shared", "output: target_embedding again"):
        assert name in texts
    left, right = (
        next(x for x in figure.axes[0].texts if x.get_text().startswith(f"{side}_layers"))
        for side in ("encoder", "decoder")
    )
    assert left.get_position()[0] < right.get_position()[0]
    assert figure.drawn("svg") == diagram(small()).drawn("svg")


@pytest.mark.filterwarnings("ignore:The chararray class")  # of NumPy, for treescope
def test_treescope_shows_a_model():
    treescope = pytest.importorskip("treescope")
    model = build_model(SMALL.model, sizes_of(31))
    assert "EncoderLayer(" in treescope.render_to_text(model.bind(model.abstract_params()))


def test_nothing_is_allocated():
    config = Config.from_dict(importlib.import_module("configs.big").get_config().to_dict())
    before = len(jax.live_arrays())
    summary_of(config, abstract_model(config, 2), 3)
    assert len(jax.live_arrays()) - before < 10
