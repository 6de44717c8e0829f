"""Heads that are switched off or uniform, in all families; against NumPy, and a masked head."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from small_configs import SINCE_2017
from small_models import trained_model
from test_attention_maps import CONVOLUTIONAL, RNN, SOURCE, TARGET, UNIVERSAL, WITHOUT

from transformer.inference.attention_maps import attention_of
from transformer.inference.heads import Switch, places_of, switched
from transformer.models.attention import Mask
from transformer.system.errors import UserError

# Of the sums of a source without padding, [B, S, D].
X_BSD = np.random.default_rng(3).normal(size=(1, 5, 24)).astype(np.float32)
MASK = Mask(np.ones((1, 5), np.int32), np.ones((1, 5), np.int32))


def changed(model, *switches):
    params = switched(model, places_of(model), [Switch(*x) for x in switches])
    return dataclasses.replace(model, params=params)


def first_layer(model):
    """The output [S, D] of the encoder's first attention, and its weights [H, S, S]."""
    return tuple(np.asarray(x[0]) for x in first_layers(model.task.model)(model.params))


@functools.lru_cache(maxsize=1)
def first_layers(model):
    @jax.jit
    def run(params):
        layer = model.bind(params).encoder_layers[0].self_attention
        return layer.attend_within(X_BSD, MASK, return_weights=True)[:2]

    return run


@pytest.mark.parametrize("name", ["rotary", "relative", "t5", "alibi"])
def test_a_head_is_off_or_uniform_and_the_others_stay(random_params, name):
    model = trained_model(random_params, **SINCE_2017[name], d_model=24, num_heads=4)
    places = places_of(model)
    assert [(side, len(x), x[0].heads) for side, x in places.items()] == [
        ("encoder", 1, 4), ("decoder", 1, 4), ("cross", 1, 4)
    ]  # fmt: skip
    whole, weights = first_layer(model)
    bound = model.task.model.bind(model.params).encoder_layers[0].self_attention.output
    nothing = np.asarray(bound.bias[...]) if bound.use_bias else 0.0
    parts = []
    for head in range(4):
        off, same = first_layer(changed(model, ("encoder", 0, head, "off")))
        np.testing.assert_array_equal(same, weights)  # it still looks; nobody listens
        parts.append(whole - off)
        assert np.abs(parts[-1]).max() > 1e-3
    np.testing.assert_allclose(sum(parts) + nothing, whole, rtol=1e-4, atol=1e-4)
    asked = "encoder", 0, 2, "uniform"
    if name in ("t5", "alibi"):
        with pytest.raises(UserError, match="no change of parameters makes a head of encoder unif"):
            changed(model, asked)
        assert places["cross"][0].uniform
    else:
        _, found = first_layer(changed(model, asked))
        np.testing.assert_allclose(found[2], 1 / 5, rtol=1e-6)
        np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(weights, 2, 0))


def test_the_rest_of_the_heads_by_hand(random_params):
    """The same as NumPy without this head."""
    model = trained_model(random_params, d_model=24, num_heads=4)
    off, weights_HSS = first_layer(changed(model, ("encoder", 0, 1, "off")))
    kernels = jax.tree.map(np.asarray, model.params["encoder_layers"][0]["self_attention"])
    values_SHU = (X_BSD[0] @ kernels["value"]["kernel"]).reshape(5, 4, 6)
    values_SHU[:, 1] = 0
    joined_SX = np.einsum("hst,thu->shu", weights_HSS, values_SHU).reshape(5, 24)
    np.testing.assert_allclose(off, joined_SX @ kernels["output"]["kernel"], rtol=1e-4, atol=1e-4)
    assert model.params["encoder_layers"][0]["self_attention"]["output"]["kernel"].all()


def test_an_rnn_without_context_does_not_look(random_params):
    """Other scores then change nothing."""
    model = trained_model(random_params, base=RNN)
    off = changed(model, ("cross", 0, 0, "off"))
    other = jax.tree.map(lambda x: x, off.params)
    other["decoder"]["alignment"] = jax.tree.map(lambda x: -x, other["decoder"]["alignment"])
    forward = jax.jit(
        lambda params: model.task.model.bind(params)(np.array([[7, 5, 2]]), np.array([[1, 6, 8]]))
    )
    np.testing.assert_array_equal(forward(off.params), forward(other))
    assert np.abs(forward(off.params) - forward(model.params)).max() > 1e-3
    maps = attention_of(changed(model, ("cross", 0, 0, "uniform")), SOURCE, TARGET).maps["cross"]
    np.testing.assert_allclose(maps, 1 / maps.shape[-1], rtol=1e-6)


def test_other_families_and_what_they_have_not(random_params):
    model = trained_model(random_params, base=CONVOLUTIONAL)
    forward = jax.jit(
        lambda params: model.task.model.bind(params)(np.array([[7, 5, 2]]), np.array([[1, 6, 8]]))
    )
    off = changed(model, *(("cross", layer, 0, "off") for layer in range(3)))
    other = jax.tree.map(lambda x: x, off.params)
    for number in other["attentions"]:
        other["attentions"][number]["query"]["length_O"] *= -1.0
    np.testing.assert_array_equal(forward(off.params), forward(other))
    with pytest.raises(UserError, match="switch it off instead"):
        changed(model, ("cross", 0, 0, "uniform"))
    # All steps of a Universal Transformer share their heads.
    universal = places_of(trained_model(random_params, base=UNIVERSAL))
    assert {name: len(x) for name, x in universal.items()} == dict.fromkeys(
        ("encoder", "decoder", "cross"), 1
    )
    assert places_of(trained_model(random_params, base=WITHOUT)) == {}
    for switch, message in (
        (("cross", 3, 0, "off"), "no head 1 in layer 4 of 'cross'"),
        (("cross", 0, 1, "off"), "no head 2 in layer 1"),
        (("<b>", 0, 0, "off"), "of '<b>'"),
        (("cross", 0, 0, "heads"), "a head cannot be 'heads'; choose one of off, uniform"),
    ):
        with pytest.raises(UserError, match=message):
            changed(model, switch)
