"""Small batches of packed rows: of sentence pairs, and of masked sequences."""

import jax.numpy as jnp
import numpy as np

from transformer.data.batches import Batch
from transformer.data.sequences import Masked


def pairs(rows=2, width=8) -> Batch:
    rng = np.random.default_rng(0)
    words = jnp.asarray(rng.integers(3, 37, (rows, width)), jnp.int32)
    segments = jnp.asarray(np.arange(width) * 3 // width + 1)[None].repeat(rows, 0)
    return Batch(words, segments, words, words, segments)


def masked() -> Masked:
    words = jnp.asarray([[3, 5, 7, 9, 11, 4, 6, 0], [8, 3, 4, 5, 0, 0, 0, 0]])
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0, 0, 0]])
    return Masked(
        tokens_BS=words,
        types_BS=jnp.zeros_like(words),
        segments_BS=segments,
        masked_BP=jnp.asarray([[1, 4], [2, 0]]),
        labels_BP=jnp.asarray([[13, 14], [15, 0]]),
        firsts_BC=jnp.asarray([[0, 3], [0, 0]]),
        is_random_BC=jnp.asarray([[0, 1], [1, -1]]),
        weight_B=jnp.ones(2),
    )


def packed(source_vocab: int, target_vocab: int) -> Batch:
    """Two rows of several sentences with padding at the end, and one row of padding."""
    rng = np.random.default_rng(5)
    src_segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 0, 0], [0] * 8])
    tgt_segments = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 2, 2, 2, 3, 3, 0], [0] * 7])
    src = rng.integers(1, source_vocab, src_segments.shape) * (src_segments > 0)
    tgt = rng.integers(1, target_vocab, (2, *tgt_segments.shape)) * (tgt_segments > 0)
    return Batch(src, src_segments, *tgt, tgt_segments)


# Row and segment of each of its sentences that is on both sides.
SENTENCES = (0, 1), (0, 2), (1, 1), (1, 2), (1, 3)
