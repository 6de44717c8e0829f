"""The arguments of lectures, measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.reports import arguments


def test_without_scaling_the_softmax_saturates():
    found = arguments.saturation(sizes=(1, 256), num_queries=16)
    assert found.largest["scaled"][0] == found.largest["not scaled"][0]
    assert found.largest["not scaled"][1] > 0.85 > 2 * found.largest["scaled"][1]
    assert found.gradient["not scaled"][1] < 0.6 * found.gradient["scaled"][1]


@pytest.mark.slow
def test_what_is_seen():
    seen = {
        name: arguments._seen(stack, 2, 9)
        for name, stack in (
            ("convolution", arguments._convolutions),
            ("RNN", arguments._rnn),
            ("attention", arguments._attends),
        )
    }
    assert seen["convolution"] == [False] * 2 + [True] * 5 + [False] * 2
    assert seen["RNN"] == [True] * 5 + [False] * 4
    assert all(seen["attention"])


def test_the_longest_chain():
    def by_hand(x_BSD, layers):
        for _ in range(layers):
            x_BSD = x_BSD @ jnp.ones((8, 8)) + x_BSD @ jnp.zeros((8, 8))  # side by side
        tokens_SD = x_BSD[0]
        return jax.lax.scan(lambda c, x: (c @ c @ c * x[0], None), jnp.eye(3), tokens_SD)[0]

    assert arguments.longest_chain(by_hand, 3, 5) == 3 + 5 * 2
    chains = [arguments.longest_chain(arguments._rnn, 1, n) for n in (5, 7)]
    assert chains == [6, 8]  # the inputs of all, then a product for each token
    chains = [arguments.longest_chain(arguments._attends, 2, n) for n in (5, 7)]
    assert chains[0] == chains[1]


def test_layer_norm_minds_no_other_sentence():
    rng = np.random.default_rng(0)
    x, other = (jnp.asarray(rng.normal(size=(1, n, 7)), jnp.float32) for n in (5, 3))
    moved = arguments.change_beside(x, other, 1e-6)
    assert moved["layer"] < 1e-6
    assert moved["batch"] > 0.1


def test_memory_grows_with_the_square_or_less():
    found = arguments.memory_of_attention(lengths=(512, 1024))
    plain, blocks = found["all scores at once"], found["in blocks of queries"]
    assert 3.5 < plain[1] / plain[0] < 4.5
    assert blocks[1] < 2.5 * blocks[0]
