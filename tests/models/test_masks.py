import jax.numpy as jnp
import numpy as np

from transformer.models.masks import Mask


def drawn(*rows):
    """A mask from its picture: x where a query (row) may attend to a key (column)."""
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_causal_mask():
    one = jnp.ones((1, 3), int)
    mask = Mask(one, one, jnp.arange(3)).dense()
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, [drawn("x..", "xx.", "xxx")])
    # A decoding step: one query, whose position is its step.
    np.testing.assert_array_equal(Mask(one[:, :1], one, jnp.array([1])).dense(), [drawn("xx.")])


def test_padding_mask_wherever_the_padding_stands():
    mask = Mask(
        jnp.array([[1, 1], [1, 0], [0, 0]]), jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    ).dense()
    assert mask.dtype == bool
    expected = [drawn("xx.", "xx."), drawn(".xx", "..."), drawn("...", "...")]
    np.testing.assert_array_equal(mask, expected)


def test_packed_sentences_do_not_see_one_another():
    queries = jnp.array([[1, 2, 2, 0, 3, 4]])
    keys = jnp.array([[1, 1, 2, 0, 0, 3, 3]])
    expected = drawn(
        "xx.....",
        "..x....",
        "..x....",
        ".......",
        ".....xx",
        ".......",  # nothing of this sentence is among the keys
    )
    np.testing.assert_array_equal(Mask(queries, keys).dense(), [expected])


def test_packed_causal_mask():
    segments = jnp.array([[1, 1, 1, 2, 2, 0, 0]])
    expected = drawn(
        "x......",
        "xx.....",
        "xxx....",
        "...x...",
        "...xx..",
        ".......",
        ".......",
    )
    mask = Mask(segments, segments, jnp.arange(7)).dense()
    np.testing.assert_array_equal(mask, [expected])
