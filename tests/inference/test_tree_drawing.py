"""Trees drawn with characters."""

import doctest

from transformer.inference import tree_drawing


def test_the_example():
    assert doctest.testmod(tree_drawing) == (0, 1)
