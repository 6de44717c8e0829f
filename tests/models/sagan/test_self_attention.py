"""The attention block beside a transcription in NumPy, position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.models.functional import FunctionalModel, num_params
from transformer.models.sagan.self_attention import ImageAttention

B, H, W, C = 2, 6, 4, 16


def block(form: str, channels: int = C) -> FunctionalModel:
    return FunctionalModel(
        lambda rngs: ImageAttention(channels, form, rngs, dtype=jnp.dtype("float32"))
    )


def first_extra(model):
    return jax.tree.map(lambda x: np.full(x.shape, x.size**-0.5, x.dtype), model.abstract_extra())


def in_numpy(params, extra, x_HWC, pooled):
    """Equations 1 to 3 of the paper, in float64; pooled: with the maxima of the released code."""
    params, extra = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, extra))

    def conv(name, x_PC):
        kernel = params[name]["kernel"][0, 0]
        sigma = extra[name]["v_X"] @ kernel @ extra[name]["u_O"]
        return x_PC @ (kernel / sigma)

    def maxima(x_PC):
        if not pooled:
            return x_PC
        image = x_PC.reshape(H, W, -1)
        return np.array(
            [
                image[i : i + 2, j : j + 2].reshape(4, -1).max(axis=0)
                for i in range(0, H, 2)
                for j in range(0, W, 2)
            ]
        )

    x_PC = x_HWC.reshape(-1, C)
    f, g, h = maxima(conv("key", x_PC)), conv("query", x_PC), maxima(conv("value", x_PC))
    outputs = []
    for j in range(len(x_PC)):
        s = np.array([f_i @ g[j] for f_i in f])
        beta = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        outputs.append(sum(b * h_i for b, h_i in zip(beta, h, strict=True)))
    y = float(params["gamma"]) * conv("output", np.array(outputs)) + x_PC
    return y.reshape(H, W, C)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_it_is_the_block_of_the_paper(form, random_params):
    model = block(form)
    params, extra = random_params(model), first_extra(model)
    x = np.random.default_rng(1).normal(size=(B, H, W, C)).astype(np.float32)

    @jax.jit
    def run(params, extra):
        bound = model.bind(params, extra)
        # One iteration: the vectors of `extra` belong to other kernels, which they may divide by
        # nearly 0. Then scores are huge, and float32 rounds them too much to be compared.
        bound(x, update=True)
        extra = model.extra_of(bound)
        return extra, bound(x, update=False), bound.weights(x, update=False)

    extra, found, weights = jax.tree.map(np.asarray, run(params, extra))
    for b in range(B):
        expected = in_numpy(params, extra, x[b], form == "released")
        np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=1e-4)
    assert weights.shape == (B, H * W, H * W // (4 if form == "released" else 1))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_it_begins_as_the_identity_and_can_leave_it(form):
    model = block(form)
    params, extra = model.init(0), first_extra(model)
    x = np.random.default_rng(1).normal(size=(B, H, W, C)).astype(np.float32)

    def loss(params):
        y = model.bind(params, extra)(x, update=False)
        return jnp.sum(y**3), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_array_equal(y, x)
    assert gradient["gamma"] != 0
    assert not np.any(gradient["query"]["kernel"])


@pytest.mark.parametrize(("form", "count"), [("paper", 32_769), ("released", 81_921)])
def test_parameters(form, count):
    """C^2 / 2 + 1, and 1.25 C^2 + 1, at 256 channels."""
    assert num_params(block(form, 256).abstract_params()) == count
