import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_configs import MODEL

from transformer.models.layers import (
    NORMALIZATIONS,
    AddAndNorm,
    Embedding,
    FeedForward,
    Linear,
    Normalization,
)
from transformer.models.numerics import DropoutRngs

F32, BF16 = jnp.dtype("float32"), jnp.dtype("bfloat16")


def config_of(**changes):
    return dataclasses.replace(MODEL, num_heads=1, **changes)


def rngs(seed=0):
    return nnx.Rngs(dropout=seed)


def test_every_product_of_a_bfloat16_gradient_has_bfloat16_operands_and_float32_sums():
    changes = dict(d_model=5, d_ff=7, activation_dropout=0.1, dtype="bfloat16", kernels="plain")
    layer = FeedForward(config_of(**changes), nnx.Rngs(0))
    graph, state = nnx.split(layer)

    def loss(state, x):
        keys = DropoutRngs(jax.random.key(0), jnp.arange(2))
        return nnx.merge(graph, state)(x, keys).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(state, jnp.ones((2, 3, 5), BF16))
    products = [line for line in str(jaxpr).splitlines() if "= dot_general[" in line]
    assert len(products) == 6
    assert all(":f32[" in line for line in products), products


def test_embedding_is_scaled_and_the_output_layer_is_not():
    embedding = Embedding(3, 4, dtype=F32, rngs=nnx.Rngs(0))
    embedding.table_VD[...] = jnp.arange(12.0).reshape(3, 4)
    # sqrt(d_model) = 2.
    x = np.float32([[[1.0, 0, 0, 1]]])
    found, logits = jax.jit(lambda: (embedding.embed(np.array([[2, 0]])), embedding.logits(x)))()
    np.testing.assert_array_equal(found, [[[16, 18, 20, 22], [0, 2, 4, 6]]])
    np.testing.assert_array_equal(logits, [[[3, 11, 19]]])


def test_bfloat16_embedding_gives_float32_logits():
    embedding = Embedding(2, 2, dtype=BF16, rngs=nnx.Rngs(0))
    assert embedding.table_VD[...].dtype == F32
    embedding.table_VD[...] = jnp.array([[16.0, 1.0], [16.0, 0.0]])
    assert jax.eval_shape(embedding.embed, np.array([[1]])).dtype == BF16
    logits = jax.jit(lambda: embedding.logits(np.array([[[16.0, 1.0]]], BF16)))()
    assert logits.dtype == F32
    # bfloat16 rounds 257 to 256.
    np.testing.assert_array_equal(logits, [[[257, 256]]])


def test_initial_values():
    embedding = np.asarray(Embedding(997, 31, dtype=F32, rngs=nnx.Rngs(0)).table_VD[...])
    assert float(embedding.std()) == pytest.approx(31**-0.5, rel=0.02)
    assert abs(float(embedding.mean())) < 4 * (31 * 31 * 997) ** -0.5
    layer = Linear(101, 53, use_bias=True, dtype=F32, rngs=nnx.Rngs(0))
    kernel, bound = np.asarray(layer.kernel[...]), (6 / (101 + 53)) ** 0.5
    assert bound * 0.99 < float(abs(kernel).max()) <= bound
    assert float(kernel.std()) == pytest.approx(bound / 3**0.5, rel=0.03)  # uniform
    np.testing.assert_array_equal(layer.bias[...], np.zeros(53))


def feed_forward(activation="relu", dropout_rate=0.0):
    changes = dict(d_model=2, d_ff=3, activation=activation, activation_dropout=dropout_rate)
    layer = FeedForward(config_of(**changes), nnx.Rngs(0))
    layer.hidden.kernel[...] = jnp.array([[1.0, -1, 2], [0, 1, 1]])
    layer.hidden.bias[...] = jnp.array([0.0, -3, 1])
    layer.output.kernel[...] = jnp.array([[1.0, 0], [100, 100], [0, 2]])
    layer.output.bias[...] = jnp.array([0.5, -0.5])
    return layer


def test_activation_dropout_acts_on_the_hidden_units_only():
    x = jnp.broadcast_to(jnp.array([1.0, 2.0]), (1, 61, 2))
    layer = feed_forward(dropout_rate=0.5)
    run = jax.jit(lambda: (layer(x, rngs()), layer(x), feed_forward()(x, rngs())))
    dropped, off, without = map(np.asarray, run())
    found = np.unique(dropped, axis=0)
    # Each of the active units, 1 and 5, is dropped or doubled: 2 and 10.
    outputs = {tuple(row) for row in found[0].tolist()}
    assert outputs == {(0.5, -0.5), (2.5, -0.5), (0.5, 19.5), (2.5, 19.5)}
    np.testing.assert_array_equal(off[0, 0], [1.5, 9.5])
    np.testing.assert_array_equal(without[0, 0], [1.5, 9.5])


def norm_of(d_model, form="layer_norm", *, epsilon=1e-6, dtype=F32):
    changes = dict(d_model=d_model, normalization=form, norm_epsilon=epsilon, dtype=dtype.name)
    return Normalization(config_of(**changes))


@pytest.mark.parametrize("form", NORMALIZATIONS)
def test_epsilon_is_added_to_the_mean_square(form):
    with jax.enable_x64(True):
        # x = (-1e-3, 1e-3) has the mean square 1e-6.
        x = np.array([[[-1e-3, 1e-3]]])
        for epsilon, expected in ((1e-6, 0.5**0.5), (3e-6, 0.5)):
            layer = norm_of(2, form, epsilon=epsilon, dtype=jnp.dtype("float64"))
            found = jax.jit(lambda x, layer=layer: layer(x))(x)
            np.testing.assert_allclose(found, [[[-expected, expected]]], rtol=1e-6)


def test_normalisation_of_bfloat16_has_float32_statistics():
    layer = norm_of(2, dtype=BF16)
    found = jax.jit(lambda x: layer(x))(np.array([[[256.0, 258.0]]], BF16))
    assert found.dtype == BF16
    # The mean, 257, is no bfloat16.
    np.testing.assert_array_equal(found, [[[-1, 1]]])


def add_and_norm(norm, dropout_rate=0.0):
    return AddAndNorm(config_of(d_model=3, norm=norm, dropout=dropout_rate, norm_epsilon=1e-6))


def test_residual_dropout_acts_on_the_sublayer_only():
    x, y = np.full((1, 67, 3), 10, F32), np.ones((1, 67, 3), F32)
    layers = [add_and_norm(norm, dropout_rate=0.5) for norm in ("pre", "post")]
    pre, post = jax.jit(lambda: [layer.after(x, y, rngs()) for layer in layers])()
    np.testing.assert_array_equal(np.unique(pre), [10, 12])
    # Post-LN drops before the sum: rows without any drop are constant, and become 0.
    assert np.isclose(post, 0).all(axis=-1).any()
    assert not np.isclose(post, 0).all()
