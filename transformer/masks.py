"""Attention masks: boolean [B, queries, keys], True where a query may attend to a key."""

import jax
import jax.numpy as jnp


def segment_mask(query_segments_BT: jax.Array, key_segments_BS: jax.Array) -> jax.Array:
    """Attention within a sentence: equal segment ids, and no padding (id 0).

    Returns [B, T, S]. With one sentence a row, this is the padding mask.
    """
    query_BT1 = query_segments_BT[:, :, None]
    key_B1S = key_segments_BS[:, None, :]
    return (query_BT1 == key_B1S) & (key_B1S > 0)


def causal_mask(length: int) -> jax.Array:
    """No attention to later positions (Section 3.2.3): lower-triangular [1, T, T]."""
    position_T = jnp.arange(length)
    return (position_T[:, None] >= position_T[None, :])[None]
