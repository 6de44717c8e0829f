"""Attention inside of the segments of packed rows, which are told by where they lie.

A kernel that gets offsets and lengths in place of a mask computes no score of two segments. cuDNN
has one, for GPUs since Hopper; JAX has it below its public surface, so a run tries it first
(kernels.py). In a row, segments follow each other from its first position; what is left is padding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Spans(NamedTuple):
    """Where the M segments of each row lie; -1 where there are fewer, and in the last column."""

    lengths_BM: jax.Array
    offsets_BN: jax.Array  # N = M + 1


def spans_of(
    query_segments_BT: jax.Array, key_segments_BS: jax.Array, most: int
) -> tuple[Spans, Spans, jax.Array | None]:
    """Where queries and keys lie, segment by segment; and the keys, [B, S], that any query sees.

    most: the most segments of a row. Each has queries and keys. The last is None if both arrays are
      the same one, so that all keys are seen.

    The kernel writes nothing for positions outside of the segments, so that NaN may stand there.
    Padding is therefore a segment of its own, the last. Queries of padding without such keys join
    the segment before it: nobody reads their results, and results that nobody reads have no
    gradients. Only keys of padding without such queries are not seen.
    """
    ids_M = jnp.arange(1, most + 2) % (most + 1)
    queries_BM, keys_BM = (
        jnp.sum(x[:, None] == ids_M[None, :, None], axis=-1, dtype=jnp.int32)
        for x in (query_segments_BT, key_segments_BS)
    )
    both_BM = (queries_BM > 0) & (keys_BM > 0)
    number_B1 = jnp.max(query_segments_BT, axis=1, keepdims=True)
    left_B1 = jnp.where(both_BM, 0, queries_BM)[:, -1:]
    joined_BM = queries_BM + left_B1 * (ids_M[None] == number_B1)

    def spans(lengths_BM: jax.Array, starts_BM: jax.Array) -> Spans:
        padded_BN = jnp.where(both_BM, starts_BM, -1)
        padded_BN = jnp.pad(padded_BN, [(0, 0), (0, 1)], constant_values=-1)
        return Spans(jnp.where(both_BM, lengths_BM, -1), padded_BN)

    queries = spans(joined_BM, jnp.cumsum(queries_BM, axis=1) - queries_BM)
    if query_segments_BT is key_segments_BS:
        return queries, queries, None
    keys = spans(keys_BM, jnp.cumsum(keys_BM, axis=1) - keys_BM)
    return queries, keys, (key_segments_BS > 0) | both_BM[:, -1:]


@jax.custom_vjp
def _without_gradient(x_BSHK: jax.Array, seen_BS: jax.Array) -> jax.Array:
    """x; its gradient is 0 where it is not seen, whatever the kernel left there."""
    return x_BSHK


_without_gradient.defvjp(
    lambda x_BSHK, seen_BS: (x_BSHK, seen_BS),
    lambda seen_BS, grad: (jnp.where(seen_BS[:, :, None, None], grad, 0), None),
)


def packed_attention(
    query_BTHK: jax.Array,
    key_BSHK: jax.Array,
    value_BSHU: jax.Array,
    queries: Spans,
    keys: Spans,
    seen_BS: jax.Array | None,
    causal: bool,
) -> jax.Array:
    """Segment i of the queries attends to segment i of the keys, by cuDNN. Returns [B, T, H, U].

    causal: no query attends to keys that lie behind it in their segment.
    seen_BS: None if all keys are seen.
    """
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    if seen_BS is not None:
        key_BSHK, value_BSHU = (_without_gradient(x, seen_BS) for x in (key_BSHK, value_BSHU))
    return dot_product_attention(
        query_BTHK,
        key_BSHK,
        value_BSHU,
        q_seqlen=queries.lengths_BM,
        kv_seqlen=keys.lengths_BM,
        q_offsets=queries.offsets_BN,
        kv_offsets=keys.offsets_BN,
        scale=query_BTHK.shape[-1] ** -0.5,
        mask_type=MaskType.PADDING_CAUSAL if causal else MaskType.PADDING,
        qkv_layout="BTNH",
    )
