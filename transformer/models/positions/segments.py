"""Positions of tokens within their sentences."""

import jax
import jax.numpy as jnp


def segment_positions(segments_BT: jax.Array) -> jax.Array:
    """Position 0, 1, 2, ... of each token within its own sentence, int32 [B, T].

    Padding is not counted, wherever it stands. Segment ids must not decrease along a row.
    """
    real_BT = segments_BT > 0
    count_BT = jnp.cumsum(real_BT, axis=1, dtype=jnp.int32)
    # A sentence starts where the id exceeds every id before it.
    highest_BT = jax.lax.cummax(segments_BT, axis=1)
    before_BT = jnp.pad(highest_BT, ((0, 0), (1, 0)))[:, :-1]
    start_BT = jnp.where(segments_BT > before_BT, count_BT, 0)
    positions_BT = jnp.maximum(count_BT - jax.lax.cummax(start_BT, axis=1), 0)
    # Otherwise XLA on a GPU would count again for each channel of an encoding.
    return jax.lax.optimization_barrier(positions_BT)


def positions_from_the_end(segments_BT: jax.Array) -> jax.Array:
    """Position ..., 2, 1, 0 of each token within its own sentence, int32 [B, T].

    Padding and segment ids are as in `segment_positions`.
    """
    backwards_BT = jnp.flip(segments_BT, axis=1)
    # Read backwards, the ids would decrease.
    ids_BT = jnp.max(segments_BT, axis=1, keepdims=True) + 1 - backwards_BT
    return jnp.flip(segment_positions(jnp.where(backwards_BT > 0, ids_BT, 0)), axis=1)


def split_segments(segments_BT: jax.Array, tokens_BT: jax.Array, separator: int) -> jax.Array:
    """Segment ids, int32 [B, T], one for each part of a sentence.

    A part ends with a token whose id is `separator`. Padding stays 0.
    """
    after_BT = jnp.pad(tokens_BT == separator, ((0, 0), (1, 0)))[:, :-1]
    count_BT = jnp.cumsum(after_BT, axis=1, dtype=jnp.int32)
    return jnp.where(segments_BT > 0, segments_BT + count_BT, 0)
