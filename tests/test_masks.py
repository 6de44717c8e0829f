import jax.numpy as jnp
import numpy as np

from transformer.masks import causal_mask, segment_mask


def drawn(*rows):
    """A mask from its picture: x where a query (row) may attend to a key (column)."""
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_causal_mask():
    assert causal_mask(3).dtype == bool
    np.testing.assert_array_equal(causal_mask(3), [drawn("x..", "xx.", "xxx")])
    np.testing.assert_array_equal(causal_mask(1), [[[True]]])


def test_padding_mask_wherever_the_padding_stands():
    mask = segment_mask(
        jnp.array([[1, 1], [1, 0], [0, 0]]), jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    )
    assert mask.dtype == bool
    expected = [drawn("xx.", "xx."), drawn(".xx", "..."), drawn("...", "...")]
    np.testing.assert_array_equal(mask, expected)


def test_packed_sentences_do_not_see_one_another():
    queries = jnp.array([[1, 2, 2, 0, 3]])
    keys = jnp.array([[1, 1, 2, 0, 0, 3, 3]])
    expected = drawn(
        "xx.....",
        "..x....",
        "..x....",
        ".......",
        ".....xx",
    )
    np.testing.assert_array_equal(segment_mask(queries, keys), [expected])


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
    mask = segment_mask(segments, segments) & causal_mask(7)
    np.testing.assert_array_equal(mask, [expected])


def test_a_sentence_missing_on_one_side_attends_to_nothing():
    mask = segment_mask(jnp.array([[1, 2]]), jnp.array([[2, 2, 0]]))
    np.testing.assert_array_equal(mask, [drawn("...", "xx.")])
