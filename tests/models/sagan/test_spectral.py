"""Spectral normalisation beside NumPy's singular values, and the cheaper convolutions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.models.functional import FunctionalModel
from transformer.models.sagan.image_convolution import (
    FEW,
    convolve,
    convolve_and_halve,
    convolve_doubled,
    double,
    halve,
)
from transformer.models.sagan.spectral import SpectralConv, power_iteration, spectral_norm


def test_golden_numbers():
    """diag(3, 1) from u = (1, 1) / sqrt(2), v first."""
    kernel, u = jnp.diag(jnp.array([3.0, 1.0])), jnp.full(2, 0.5**0.5)
    found = []
    for _ in range(3):
        u, v = power_iteration(kernel, u)
        found.append(float(spectral_norm(kernel, u, v)))
    np.testing.assert_allclose(found, [2.863564, 2.998173, 2.999977], atol=1e-6)


def conv() -> tuple[FunctionalModel, dict, dict]:
    model = FunctionalModel(
        lambda rngs: SpectralConv(3, 5, 7, rngs, dtype=jnp.dtype("float32"), bias=False)
    )
    return model, model.init(0), model.init_extra(0)


def in_numpy(kernel, u, iterations):
    """Algorithm 1 of Miyato et al. 2018 on the kernel as a matrix [3 * 3 * I, O]."""
    w = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    u = np.asarray(u, np.float64)
    for _ in range(iterations):
        v = w @ u / np.linalg.norm(w @ u)
        u = w.T @ v / np.linalg.norm(w.T @ v)
    return u, v, v @ w @ u


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_kernel_is_that_of_the_paper(iterations):
    model, params, extra = conv()
    u, v, norm = in_numpy(params["kernel"], extra["u_O"], iterations)

    @jax.jit
    def run(params, extra):
        bound = model.bind(params, extra)
        return [bound.normalised(update=True) for _ in range(iterations)], model.extra_of(bound)

    (*_, found), after = run(params, extra)
    np.testing.assert_allclose(found, np.asarray(params["kernel"]) / norm, rtol=1e-5)
    np.testing.assert_allclose(after["u_O"], u, atol=1e-6)
    np.testing.assert_allclose(after["v_X"], v, atol=1e-6)


def test_the_norm_becomes_the_largest_singular_value():
    model, params, extra = conv()

    @jax.jit
    def iterate(extra):
        bound = model.bind(params, extra)
        return bound.normalised(update=True), model.extra_of(bound)

    for _ in range(200):
        normalised, extra = iterate(extra)
    matrix = np.asarray(normalised).reshape(-1, 7)
    assert np.linalg.svd(matrix, compute_uv=False)[0] == pytest.approx(1, abs=1e-5)


def test_without_update_nothing_moves():
    model, params, extra = conv()
    bound = model.bind(params, extra)
    first = bound.normalised(update=False)
    jax.tree.map(np.testing.assert_array_equal, model.extra_of(bound), extra)
    bound.normalised(update=True)
    assert not np.array_equal(model.extra_of(bound)["u_O"], extra["u_O"])
    assert not np.array_equal(bound.normalised(update=False), first)


def test_the_gradient_takes_the_vectors_for_constants():
    """d (W / sigma) with sigma = v^T W u: for the sum of all entries."""
    model, params, extra = conv()

    def total(params):
        return model.bind(params, extra).normalised(update=True).sum()

    u, v, norm = in_numpy(params["kernel"], extra["u_O"], 1)
    w = np.asarray(params["kernel"], np.float64).reshape(-1, 7)
    expected = (1 - w.sum() / norm * np.outer(v, u)) / norm
    found = jax.grad(total)(params)["kernel"].reshape(-1, 7)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def written_out(x, kernel):
    """A sum over the taps, whose gradient JAX finds by itself."""
    size, (_, H, W, _) = kernel.shape[0], x.shape
    x = jnp.pad(x, [(0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)])
    taps = [(i, j) for i in range(size) for j in range(size)]
    return sum(x[:, i : i + H, j : j + W] @ kernel[i, j] for i, j in taps)


@functools.partial(jax.jit, static_argnums=0)
def result_and_gradients(function, x, kernel):
    y, back = jax.vjp(function, x, kernel)
    return y, *back(jnp.sin(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape))


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        (convolve, written_out),
        (convolve_doubled, lambda x, kernel: written_out(double(x), kernel)),
        (convolve_and_halve, lambda x, kernel: halve(written_out(x, kernel))),
    ],
)
def test_gradients(function, plain):
    # Few channels or many, and of either side more; 5 x 5 pixels, too.
    kernels = [(3, 5, 7)]
    if function is convolve:
        kernels += [(3, 5, FEW + 1), (5, FEW + 2, FEW + 1), (3, FEW + 1, 2)]
    rng = np.random.default_rng(1)
    for size, I, O in kernels:  # noqa: E741
        shapes = (2, 6, 4, I), (size, size, I, O)
        x, kernel = (np.float32(rng.normal(size=shape)) for shape in shapes)
        own = functools.partial(function, dtype=jnp.float32)
        both = [result_and_gradients(f, x, kernel) for f in (own, plain)]
        for found, expected in zip(*both, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "channels"),
    [
        (convolve, (5, FEW + 3)),
        (convolve, (FEW + 3, 5)),
        (convolve_doubled, (5, FEW + 3)),
        (convolve_and_halve, (FEW + 3, 5)),
    ],
)
def test_kernels_gradients_are_float32(function, channels):
    """Also where the model is in bfloat16: their sums are not rounded before Adam sees them."""
    rng = np.random.default_rng(2)
    shapes = (2, 6, 4, channels[0]), (3, 3, *channels)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)
    kernel = kernel.astype(jnp.float32)

    def gradient(dtype):
        total = lambda kernel: function(x, kernel, jnp.dtype(dtype)).astype(jnp.float32).sum()  # noqa: E731
        return jax.jit(jax.grad(total))(kernel)

    bfloat16 = jnp.dtype("bfloat16")
    y = jax.eval_shape(lambda x, kernel: function(x, kernel, bfloat16), x, kernel)
    found = gradient("bfloat16")
    assert (y.dtype, found.dtype) == (bfloat16, jnp.float32)
    np.testing.assert_allclose(found, gradient("float32"), atol=2e-2)


def test_all_but_the_parameters_is_extra_state():
    model, params, extra = conv()
    assert list(params) == ["kernel"]
    assert sorted(extra) == ["u_O", "v_X"]
    with pytest.raises(TypeError, match="has extra state"):
        model.bind(params)
    assert isinstance(model.bind(params, extra), nnx.Module)
