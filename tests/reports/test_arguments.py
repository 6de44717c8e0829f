"""The arguments of lectures, measured."""

import jax.numpy as jnp
import numpy as np

from transformer.reports import arguments


def test_without_scaling_the_softmax_saturates():
    found = arguments.saturation(sizes=(1, 256), num_queries=16)
    assert found.largest["scaled"][0] == found.largest["not scaled"][0]
    assert found.largest["not scaled"][1] > 0.85 > 2 * found.largest["scaled"][1]
    assert found.gradient["not scaled"][1] < 0.6 * found.gradient["scaled"][1]


def test_layer_norm_minds_no_other_sentence():
    rng = np.random.default_rng(0)
    x, other = (jnp.asarray(rng.normal(size=(1, n, 7)), jnp.float32) for n in (5, 3))
    moved = arguments.change_beside(x, other, 1e-6)
    assert moved["layer"] < 1e-6
    assert moved["batch"] > 0.1
