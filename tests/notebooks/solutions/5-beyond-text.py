"""Solutions of notebooks/5-beyond-text.ipynb."""

import jax
import numpy as np


# exercise-1
def image_weights(x_PC, query_CK, key_CK):
    return jax.nn.softmax((x_PC @ query_CK) @ (x_PC @ key_CK).T, axis=-1)


# exercise-2
def local_mask(X, W):
    position_X = np.arange(X)
    same_block_XX = position_X[:, None] // W == position_X[None] // W
    return same_block_XX & (position_X[:, None] >= position_X[None])


# exercise-3
def brackets(tree, start=0):
    """The brackets of a tree, and where it ends."""
    if tree.word is not None:
        return [], start + 1
    found, end = [], start
    for child in tree.children:
        own, end = brackets(child, end)
        found += own
    return [*found, (tree.label, start, end)], end


def f1(gold, test):
    from collections import Counter

    ours, theirs = (Counter(brackets(tree)[0]) for tree in (gold, test))
    return 200 * (ours & theirs).total() / (ours.total() + theirs.total())
