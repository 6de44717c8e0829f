import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from transformer.models import numerics
from transformer.models.numerics import (
    at_least_float32,
    dropout,
    multiply,
    standardize,
)

random_words = jax.jit(numerics.random_words, static_argnums=1)

F32, BF16 = jnp.dtype("float32"), jnp.dtype("bfloat16")


def rngs(seed=0):
    return nnx.Rngs(dropout=seed)


def test_at_least_float32():
    assert [at_least_float32(jnp.dtype(d)) for d in ("bfloat16", "float32", "float64")] == [
        jnp.dtype(d) for d in ("float32", "float32", "float64")
    ]


def test_dropout_zeroes_at_its_rate_and_scales_the_rest():
    rates = 0.1, 0.25, 0.75
    run = jax.jit(lambda x: [dropout(x, rate, rngs(1)) for rate in rates])
    for rate, y in zip(rates, map(np.asarray, run(np.ones((311, 313), F32))), strict=True):
        np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=1e-6)
        assert abs((y == 0).mean() - rate) < 4 * (rate * (1 - rate) / y.size) ** 0.5


def correlation_is_small(a, b):
    """Whether bits agree in half of the places, within 5 standard deviations."""
    return abs((a == b).mean() - 0.5) < 5 * (0.25 / a.size) ** 0.5


def test_dropout_draws_are_independent():
    @jax.jit
    def draw():
        stream = rngs(2)
        return [dropout(jnp.ones((401, 7, 54)), 0.5, stream) == 0 for _ in "ab"]

    dropped, other = map(np.asarray, draw())
    assert correlation_is_small(dropped, other)
    for axis in range(3):
        for shift in (1, 2, 4, 5):
            assert correlation_is_small(dropped, np.roll(dropped, shift, axis))
            assert correlation_is_small(dropped, np.roll(other, shift, axis))


def test_random_words_are_uniform_in_every_bit():
    keys = jax.random.split(jax.random.key(5), 3)
    words = np.asarray(random_words(keys, (3, 127, 131)))
    assert words.dtype == np.uint32
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 32)
    deviation = (0.25 / len(bits)) ** 0.5
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * deviation
    agreement = (bits[:, :, None] == bits[:, None, :]).mean(0) - np.eye(32) / 2
    assert np.abs(agreement - 0.5).max() < 5 * deviation
    assert len(np.unique(words)) > words.size - 20  # 1.4 equal ones are to be expected


def test_random_words_of_a_row_depend_on_its_key_and_place_alone():
    keys = jax.random.split(jax.random.key(6), 5)
    words = random_words(keys, (5, 7, 11))
    np.testing.assert_array_equal(words[3:], random_words(keys[3:], (2, 7, 11)))
    np.testing.assert_array_equal(words[:, :2], random_words(keys, (5, 2, 11)))
    # Neighbouring counters, as bad keys as can be, share no words.
    close = jax.random.wrap_key_data(jnp.array([[0, 0], [0, 1], [1, 0]], jnp.uint32))
    a, b, c = np.asarray(random_words(close, (3, 997)))
    assert (a != b).all()
    assert (a != c).all()
    assert (b != c).all()


def test_dropout_depends_on_its_key_and_on_nothing_else():
    @jax.jit
    def draw(seed):
        stream = nnx.Rngs(dropout=jax.random.key(seed))
        return [dropout(jnp.ones((7, 11)), 0.5, stream) for _ in "ab"]

    (first, second), (other, _) = draw(3), draw(4)
    np.testing.assert_array_equal(first, draw(3)[0])
    assert (first != other).any()
    assert (first != second).any(), "two layers drew the same mask"


def test_dropout_is_off_without_rngs_or_rate():
    x = jnp.ones((2, 3))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, rngs()) is x


def test_dropout_keeps_type_and_shape():
    for shape in ((1,), (5, 1), (2, 3, 7)):
        x = jax.ShapeDtypeStruct(shape, BF16)
        y = jax.eval_shape(lambda x: dropout(x, 0.3, rngs()), x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)


@functools.partial(jax.jit, static_argnums=3)
def product_and_gradients(x_BTI, w_IO, direction_BTO, dtype):
    y, backward = jax.vjp(lambda x, w: multiply("BTI,IO->BTO", x, w, dtype), x_BTI, w_IO)
    return y, *backward(direction_BTO)


@pytest.mark.parametrize("d_out", [3, 13])  # the gradient's operands come in another order
def test_multiply_and_its_gradient(d_out):
    rng = np.random.default_rng(7)
    x, w, g = (np.float32(rng.normal(size=s)) for s in ((2, 5, 7), (7, d_out), (2, 5, d_out)))
    y, dx, dw = product_and_gradients(x, w, g, F32)
    np.testing.assert_allclose(y, np.einsum("bti,io->bto", x, w), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, np.einsum("bto,io->bti", g, w), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, np.einsum("bto,bti->io", g, x), rtol=1e-5, atol=1e-6)


def test_multiply_gives_float32_sums_of_bfloat16_operands():
    x, w = np.array([[[16.0, 1.0]]], BF16), np.float32([[16.0], [1.0]])
    # 1 + 2^-9 is 1 in bfloat16: operands are rounded, the gradient of a parameter is not.
    y, dx, dw = product_and_gradients(x, w, np.float32([[[1 + 2.0**-9]]]), BF16)
    assert y.dtype == F32
    np.testing.assert_array_equal(y, [[[257]]])  # bfloat16 rounds it to 256
    assert (dx.dtype, dw.dtype) == (BF16, F32)
    np.testing.assert_array_equal(dw, [[16], [1]])
    both = np.array([[[16.0], [1.0]]], BF16)
    _, _, dw = product_and_gradients(both, w[:1], both.astype(F32), BF16)
    np.testing.assert_array_equal(dw, [[257]])


def test_a_widened_product_is_the_same(monkeypatch):
    rng = np.random.default_rng(7)
    x, w, g = (np.float32(rng.normal(size=s)) for s in ((2, 5, 7), (7, 3), (2, 5, 3)))
    x, program = x.astype(BF16), {}
    monkeypatch.setattr(numerics, "WIDENED_FROM", 0)

    def of(x, w):
        y, backward = jax.vjp(lambda x, w: multiply("BTI,IO->BTO", x, w, BF16), x, w)
        return y, *backward(g)

    for native in (True, False):
        monkeypatch.setattr(numerics, "multiplies_bfloat16", functools.partial(bool, native))
        traced = jax.jit(lambda x, w: of(x, w)).trace(x, w)
        program[native] = (
            [
                traced.lower(lowering_platforms=(platform,)).as_text()
                for platform in ("cpu", "cuda")
            ],
            jax.tree.map(np.asarray, jax.jit(lambda x, w: of(x, w))(x, w)),
        )
    (cpu, cuda), expected = program[True]
    (widened, unchanged), found = program[False]
    assert cuda.count("reduce_precision") == unchanged.count("reduce_precision") == 0
    assert unchanged.count("bf16") >= cuda.count("bf16") > widened.count("bf16")
    assert cpu.count("reduce_precision") < widened.count("reduce_precision")
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(F32), other.astype(F32), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_float32_products_are_rounded_on_no_device(dtype, platform):
    def gradient(x, w):
        return jax.grad(lambda w: multiply("BTI,IO->BTO", x, w, dtype).sum())(w)

    x, w = jax.ShapeDtypeStruct((2, 3, 5), F32), jax.ShapeDtypeStruct((5, 7), F32)
    module = export.export(jax.jit(gradient), platforms=[platform])(x, w).mlir_module()
    products = [line for line in module.splitlines() if "stablehlo.dot_general" in line]
    assert products
    for line in products:  # bfloat16 operands need no more than the default
        assert ("precision = [HIGHEST, HIGHEST]" in line) == (dtype == F32)


def standardize_in_two_passes(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("mean", [0, 1000])
def test_standardize_keeps_its_digits_where_the_mean_is_large(mean):
    """The mean of squares less the square of the mean would be up to 0.38 off for 1,000."""
    rng = np.random.default_rng(0)
    x = (mean + rng.normal(size=(5, 7, 509))).astype(np.float32)
    gradient = rng.normal(size=x.shape).astype(np.float32)

    def both(function, x, gradient):
        y, backward = jax.vjp(function, x)
        return y, *backward(gradient)

    run = jax.jit(both, static_argnums=0)
    found, found_gradient = run(functools.partial(standardize, epsilon=1e-6), x, gradient)
    with jax.enable_x64(True):
        expected, expected_gradient = map(
            np.asarray, run(standardize_in_two_passes, np.float64(x), np.float64(gradient))
        )
    np.testing.assert_allclose(found, expected, atol=2e-4 if mean else 2e-6)
    np.testing.assert_allclose(found_gradient, expected_gradient, atol=2e-4 if mean else 2e-6)
