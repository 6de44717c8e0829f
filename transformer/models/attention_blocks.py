"""Attention in blocks of queries, so that memory grows with the length and not with its square.

Blocks come one after another, and the backward pass computes the softmax of a block again instead
of keeping it (Rabe and Staats, arXiv 2112.05682). What comes out is that of all queries at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.models.masks import Mask
from transformer.models.numerics import DropoutRngs, at_least_float32, join, row_keys, split


def in_blocks(
    attend: Callable[..., tuple[jax.Array, jax.Array | None]],
    most: int,
    query_BHTK: jax.Array,
    memory: Any,
    mask: Mask,
    dropout_rate: float,
    rngs: DropoutRngs | None,
    return_weights: bool,
    own: Any = None,
) -> tuple[jax.Array, jax.Array | None]:
    """`attend` (attention.py:dot_product_attention) for at most `most` queries at once."""
    B, _, T, _ = query_BHTK.shape
    num_blocks = -(-T // most)
    positions_T = mask.query_positions_T
    blocks = (
        split(query_BHTK, num_blocks, axis=2),
        # Queries that fill up the last block have segment 0: they attend to nothing.
        split(jnp.broadcast_to(mask.query_segments_BT, (B, T)), num_blocks, axis=1),
        None if positions_T is None else split(positions_T, num_blocks, axis=0),
        None if rngs is None or dropout_rate == 0 else split_rngs(rngs, B, num_blocks),
        None if own is None else jax.tree.map(lambda x: split(x, num_blocks, axis=2), own),
    )
    # Gradients of keys and values are sums over the blocks, and summed in the type of these
    # copies: bfloat16 would round after each block.
    copies = jax.tree.map(lambda x: x.astype(at_least_float32(x.dtype)), memory)

    def attend_block(block):
        query_BHTK, segments_BT, positions_T, rngs, own = block
        key_values = jax.tree.map(lambda copy, x: copy.astype(x.dtype), copies, memory)
        own_mask = mask._replace(query_segments_BT=segments_BT, query_positions_T=positions_T)
        mask_BTS = own_mask.dense()
        return attend(query_BHTK, key_values, mask_BTS, dropout_rate, rngs, return_weights, own)

    # In a loop nothing merges the two computations of a softmax, so nothing need prevent it.
    results = jax.lax.map(jax.checkpoint(attend_block, prevent_cse=False), blocks)
    return jax.tree.map(lambda x: join(x, axis=2)[:, :, :T], results)


class _DrawnKeys(NamedTuple):
    """In place of DropoutRngs: keys drawn before, one for each row."""

    keys_B: jax.Array

    def dropout(self) -> jax.Array:
        return self.keys_B


def split_rngs(rngs: DropoutRngs, num_rows: int, num_blocks: int) -> _DrawnKeys:
    """Keys of their own for each block, along a first axis."""
    keys_B = row_keys(rngs, num_rows)
    fold_in_rows = jax.vmap(jax.random.fold_in, (0, None))
    return _DrawnKeys(jax.vmap(fold_in_rows, (None, 0))(keys_B, jnp.arange(num_blocks)))
