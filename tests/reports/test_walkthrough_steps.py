"""The numbers of the walk-through are those of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import trained_model

from transformer.reports.walkthrough_numbers import Update, batch_of, follow, update
from transformer.reports.walkthrough_page import Line, code_of, walkthrough_page
from transformer.reports.walkthrough_steps import steps, update_step
from transformer.system.errors import UserError

SOURCE, TARGET = "one two three", "three one"


@pytest.fixture(scope="module")
def model(random_params):
    return trained_model(random_params, num_decoder_layers=2)


@pytest.fixture(scope="module")
def one(model):
    return follow(model, SOURCE, TARGET, layer=1, head=1)


def test_they_are_those_of_a_forward_pass(model):
    one = follow(model, SOURCE, TARGET, layer=2, head=2)
    batch, smoothing = batch_of(one), model.config.training.label_smoothing

    @jax.jit
    def whole(params):
        bound = model.task.model.bind(params)
        outputs = bound(batch.src_BS, batch.tgt_in_BT, return_weights=True)
        return *outputs, bound.loss(batch, None, smoothing)

    logits, weights, loss = whole(model.params)
    np.testing.assert_allclose(one.logits_TV, logits[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.weights_TT, weights.decoder[1][0, 1], atol=1e-6)
    np.testing.assert_allclose(one.cross_TS, weights.cross[1][0, 1], atol=1e-6)
    np.testing.assert_allclose(one.smoothed_T.sum(), loss.loss, rtol=1e-5)
    np.testing.assert_allclose(one.nll_T.sum(), loss.nll, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_each_follows_from_those_before(random_params, norm):
    """By the paper's equations, in NumPy."""
    model = trained_model(random_params, norm=norm)
    one = follow(model, SOURCE, TARGET, layer=1, head=1)
    K = one.query_TK.shape[1]
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(one.embedded_TD, one.embedding_TD * 14**0.5, **close)
    np.testing.assert_allclose(
        (one.x_TD - one.embedded_TD)[1, :2], np.sin([1, 1 + np.pi / 2]), **close
    )
    np.testing.assert_allclose(one.scores_TT, one.query_TK @ one.key_TK.T, **close)
    later = np.triu(np.ones_like(one.scores_TT), 1) > 0
    np.testing.assert_allclose(one.masked_TT[~later], one.scores_TT[~later] / K**0.5, **close)
    assert (one.masked_TT[later] == -np.inf).all()
    exp = np.exp(one.masked_TT)
    np.testing.assert_allclose(one.weights_TT, exp / exp.sum(axis=1, keepdims=True), **close)
    assert (one.weights_TT[later] == 0).all()
    np.testing.assert_allclose(one.head_TU, one.weights_TT @ one.value_TU, **close)
    np.testing.assert_allclose(one.joined_TX[:, :7], one.head_TU, **close)
    params = model.params["decoder_layers"][0]
    output = params["self_attention"]["output"]["kernel"]
    np.testing.assert_allclose(one.attended_TD, one.joined_TX @ output, **close)
    x = one.layer_input_TD + one.attended_TD
    if model.config.model.norm == "post":
        norm = params["self_attention_norm"]["norm"]
        x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
        x = x * norm["scale"][None] + norm["bias"][None]
    np.testing.assert_allclose(one.after_self_TD, x, rtol=1e-3, atol=1e-4)
    network = params["feed_forward"]["output"]
    hidden = one.hidden_TF @ network["kernel"] + network["bias"][None]
    np.testing.assert_allclose(one.transformed_TD, hidden, **close)
    log_p = np.asarray(jax.nn.log_softmax(jnp.asarray(one.logits_TV)))
    np.testing.assert_allclose(one.nll_T, -log_p[np.arange(len(one.tgt_out)), one.tgt_out], **close)
    smoothed = 0.9 * one.nll_T - 0.1 * log_p.mean(axis=1)
    np.testing.assert_allclose(one.smoothed_T, smoothed, **close)


@pytest.mark.slow
def test_a_gradient_step_lowers_the_loss(model, one):
    found = update(model, one)
    assert found.loss_before == pytest.approx(one.smoothed_T.mean(), rel=1e-5)
    assert found.loss_after < found.loss_before
    names = {name: (shape, moves) for name, shape, _, moves, _ in found.groups}
    assert names["target_embedding/table_VD"] == ((271, 14), 1.0)

    def loss(params):
        found = model.task.model.bind(params).loss(batch_of(one), None, 0.1)
        return found.loss / found.tokens

    gradient = jax.jit(jax.grad(loss))(model.params)
    norms = {name: norm for name, _, norm, _, _ in found.groups}
    expected = np.linalg.norm(gradient["decoder_layers"][1]["feed_forward"]["hidden"]["kernel"])
    assert norms["decoder_layers/1/feed_forward/hidden/kernel"] == pytest.approx(expected, rel=1e-4)


def test_the_page_names_lines_that_exist(model, one):
    moved = Update(0.1, [("target_embedding/table_VD", (271, 14), 1.5, 1.0, 0.1)], 2.5, 1.5)
    walk = [*steps(model, one, 1, 1), update_step(moved)]
    page = walkthrough_page("a <b>", "x", {"Forward": walk})
    assert "<script" not in page
    assert "a &lt;b&gt;" in page
    for step in walk:
        assert step.code
        assert all(code_of(line) in page for line in step.code)
    with pytest.raises(ValueError, match="has no 'no such line'"):
        code_of(Line(follow, "no such line"))
    assert code_of(Line(follow, "def follow(")).startswith(
        f"<code>transformer/reports/walkthrough_numbers.py, line {follow.__code__.co_firstlineno}:"
    )


def test_what_cannot_be_followed(model):
    for layer, head, message in ((3, 1, "layer 3 is asked for; the"), (1, 3, "head 3 is asked")):
        with pytest.raises(UserError, match=f"{message}.* decoder has 1 to 2"):
            follow(model, SOURCE, TARGET, layer, head)
