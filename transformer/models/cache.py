"""The KV cache of a decoder: keys and values of the tokens so far.

A cache is a dict. Its "step" is the number of the next token. A search of M hypotheses for each of
B sentences, N = B * M, reorders the leaves of "hypothesis", whose first dimension is N. It leaves
"sentence" and "key_values" as they are. Only some models have "key_values"; the rest of this file
is about these.

To see the attention, put an array [N, S] as "attention" into the cache. Each step then stores its
weights over the source tokens there: the mean over the heads of one layer (the last but one, if
there are several).

A search reorders its hypotheses at every step. To reorder their keys and values with them would
copy the whole cache each time. So keys and values stay in the slot where they were written, one of
M slots for each sentence. Each hypothesis has a list of its ancestors instead: the slot of each of
its tokens. The list is short, and it is reordered.

The M queries of a sentence read all slots together, and a mask hides those of other hypotheses.
That is M times as many scores as needed, and still faster: scores are cheap, and reading is not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.numerics import multiply_heads, rounded_to_bfloat16
from transformer.models.positions.kind import Scoring


class CachedKeyValues(NamedTuple):
    """Keys and values of a sentence's source tokens, or of its hypotheses' earlier tokens.

    In the latter, token l in slot m has index l * M + m of X = L * M. In these layouts a CPU
    multiplies without transposing first.
    """

    key_BHKX: jax.Array
    value_BHXU: jax.Array


def empty_key_values(like: CachedKeyValues, M: int, L: int) -> CachedKeyValues:
    """An empty cache for L tokens of M hypotheses per sentence; `like` has B, H, K and U."""
    B, H, K, _ = like.key_BHKX.shape
    U, dtype = like.value_BHXU.shape[3], like.key_BHKX.dtype
    return CachedKeyValues(jnp.zeros((B, H, K, L * M), dtype), jnp.zeros((B, H, L * M, U), dtype))


def with_capacity(cache: dict[str, Any], M: int, L: int) -> dict[str, Any]:
    """The cache with capacity for L tokens; a search lets it grow, so that it reads less."""

    def resize(x: jax.Array, axis: int) -> jax.Array:
        more = L * M - x.shape[axis]
        if more <= 0:
            return jax.lax.slice_in_dim(x, 0, L * M, axis=axis)
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, more)
        return jnp.pad(x, padding)

    def resize_key_values(key_values: CachedKeyValues) -> CachedKeyValues:
        return CachedKeyValues(resize(key_values.key_BHKX, 3), resize(key_values.value_BHXU, 2))

    if "key_values" not in cache:
        return cache
    resized = jax.tree.map(
        resize_key_values, cache["key_values"], is_leaf=lambda x: isinstance(x, CachedKeyValues)
    )
    return {**cache, "key_values": resized}


def widened(cache: dict[str, Any]) -> dict[str, Any]:
    """The cache with all keys and values in float32, for a CPU; they are rounded as before.

    XLA on CPUs writes to a bfloat16 array by way of float32: each step would convert the whole
    cache, and back.
    """

    def widen(x: Any) -> Any:
        if isinstance(x, CachedKeyValues) and x.key_BHKX.dtype == jnp.bfloat16:
            return CachedKeyValues(*map(rounded_to_bfloat16, x))
        return x

    return jax.tree.map(widen, cache, is_leaf=lambda x: isinstance(x, CachedKeyValues))


def write_key_values(
    key_values: CachedKeyValues, new: CachedKeyValues, step: jax.Array
) -> CachedKeyValues:
    """The cache with the new keys [B, H, K, M] and values [B, H, M, U] of token number `step`."""
    begin = step * new.key_BHKX.shape[3]

    def write(x: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        if x.dtype != new.dtype:  # see `widened`
            new = rounded_to_bfloat16(new)
        return jax.lax.dynamic_update_slice_in_dim(x, new, begin, axis)

    return CachedKeyValues(
        write(key_values.key_BHKX, new.key_BHKX, 3), write(key_values.value_BHXU, new.value_BHXU, 2)
    )


@jax.named_scope("attention")
def attend_to_cache(
    query_BHMK: jax.Array, parts: Sequence[tuple[CachedKeyValues, jax.Array, Scoring]]
) -> tuple[jax.Array, list[jax.Array]]:
    """softmax(Q K^T / sqrt(d_k)) V, Equation 1. Returns [B, H, M, U] and the weights of each part.

    parts: keys and values, each with its mask and scoring; one softmax is over all. They may lie in
      several arrays, since joining them would copy them at each step. A mask may have size 1 in
      place of M. Keys and values may be `widened`, and H may be a divisor of the query's.

    Weights, [B, H, M, X], are in at least float32.
    """
    dtype = query_BHMK.dtype
    query_BHMK = query_BHMK * jnp.asarray(query_BHMK.shape[-1] ** -0.5, dtype)
    scores = []
    for key_values, mask_BMX, scoring in parts:
        keys_BHKX = key_values.key_BHKX
        scores_BHMX = multiply_heads("BHMK,BHKX->BHMX", query_BHMK, keys_BHKX, keys_BHKX.dtype)
        scores_BHMX = scoring.scores(scores_BHMX, query_BHMK)
        scores.append(jnp.where(mask_BMX[:, None], scores_BHMX, jnp.finfo(scores_BHMX.dtype).min))
    weights_BHMX = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
    ends = np.cumsum([x.shape[-1] for x in scores])
    weights = jnp.split(weights_BHMX, ends[:-1], axis=-1)

    def mean_of_values(own_BHMX: jax.Array, values_BHXU: jax.Array, scoring: Scoring) -> jax.Array:
        is_wide = values_BHXU.dtype != dtype
        own_BHMX = rounded_to_bfloat16(own_BHMX) if is_wide else own_BHMX
        y_BHMU = multiply_heads("BHMX,BHXU->BHMU", own_BHMX, values_BHXU, values_BHXU.dtype)
        return scoring.values(y_BHMU, own_BHMX)

    y_BHMU = sum(
        mean_of_values(own_BHMX, key_values.value_BHXU, scoring)
        for own_BHMX, (key_values, _, scoring) in zip(weights, parts, strict=True)
    )
    return y_BHMU.astype(dtype), weights


def first_ancestors(num_sentences: int, M: int, L: int) -> jax.Array:
    """The lists of ancestors [N, L] before the first token, for at most L tokens."""
    return jnp.zeros((num_sentences * M, L), jnp.int32)


class DecodingStep(NamedTuple):
    """The inputs of a decoding step that are the same for all layers."""

    step: jax.Array  # the number of the token
    ancestors_NL: jax.Array
    mask_BMX: jax.Array  # of a hypothesis: its own tokens, up to this one
    memory_mask_B1S: jax.Array  # of its sentence: all but padding
    before_B: jax.Array  # a decoder-only model's source, before its own tokens; or 0, [1]

    @property
    def positions_BT(self) -> jax.Array:
        """The position of the token in its sequence, [B, 1] or [1, 1]."""
        return (self.before_B + self.step)[:, None]

    @property
    def own_positions_BX(self) -> jax.Array:
        """Positions, in the whole sequence, of the tokens in the slots of `mask_BMX`."""
        M, X = self.mask_BMX.shape[1:]
        return self.before_B[:, None] + jnp.arange(X)[None] // M


def decoding_step(
    step: jax.Array,
    ancestors_NL: jax.Array,
    source_segments_BS: jax.Array,
    key_values: CachedKeyValues,
) -> DecodingStep:
    """The step that decodes token number `step`, which each hypothesis has in its own slot.

    key_values: those of any layer.
    """
    N, B = ancestors_NL.shape[0], source_segments_BS.shape[0]
    M = N // B
    L = key_values.key_BHKX.shape[3] // M
    own_N = jnp.arange(N, dtype=jnp.int32) % M
    ancestors_NL = jax.lax.dynamic_update_index_in_dim(ancestors_NL, own_N, step, axis=1)
    own_NLM = ancestors_NL[:, :L, None] == jnp.arange(M)[None, None]
    own_NLM &= (jnp.arange(L) <= step)[None, :, None]
    mask_B1S = (source_segments_BS > 0)[:, None]
    mask_BMX = own_NLM.reshape(B, M, L * M)
    return DecodingStep(step, ancestors_NL, mask_BMX, mask_B1S, np.zeros(1, np.int32))


def attention_to_see(weights: list[jax.Array]) -> jax.Array:
    """The weights [N, S] that a cache shows, from those of all layers, [B, H, M, S]."""
    weights_BMS = weights[max(0, len(weights) - 2)].mean(axis=1)
    return weights_BMS.reshape(-1, weights_BMS.shape[2]).astype(jnp.float32)
