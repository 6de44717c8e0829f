"""Masks, scaled dot-product attention and multi-head attention (Section 3.2)."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer.models.cache import (
    CachedKeyValues,
    DecodingStep,
    attend_to_cache,
    write_key_values,
)
from transformer.models.layers import LayerConfig, Linear, Normalization
from transformer.models.numerics import (
    DropoutRngs,
    at_least_float32,
    dropout,
    join,
    multiply,
    multiply_heads,
    split,
    split_rngs,
)
from transformer.models.packed_attention import Spans, packed_attention
from transformer.models.positions import Positions, segment_positions
from transformer.models.positions.kind import Scoring
from transformer.system.sharding import on_each_device

# The most queries whose scores are in memory at once. Rows of at most this length are one block,
# which saves the second softmax. docs/performance.md says what longer rows gain.
MAX_QUERIES = 256


class Mask(NamedTuple):
    """A mask of attention in memory linear in the length; `dense` makes the array [B, T, S].

    A query attends to keys of its own segment and to no padding (id 0). With one sentence a
    row, this is the padding mask. Either array may have size 1 in place of B, and
    `query_segments_BT` in place of T.

    `query_positions_T` are the queries' positions among the keys (0, 1, ...). If given, no query
    attends to later keys (Section 3.2.3). In training they are 0 to T - 1; in decoding, the step.
    A key need not lie at its position: `key_positions_BS` then says from which query on it is
    seen.

    spans: the same of rows of segments, for a kernel; see packed_attention.py.
    """

    query_segments_BT: jax.Array
    key_segments_BS: jax.Array
    query_positions_T: jax.Array | None = None
    key_positions_BS: jax.Array | None = None
    spans: tuple[Spans, Spans, jax.Array | None] | None = None

    @property
    def positions_BT(self) -> jax.Array:
        """The position of each query in its own sentence."""
        return segment_positions(self.query_segments_BT)

    def dense(self) -> jax.Array:
        """Boolean [B, T, S], True where a query may attend to a key; sizes of 1 stay."""
        key_B1S = self.key_segments_BS[:, None, :]
        mask_BTS = (self.query_segments_BT[:, :, None] == key_B1S) & (key_B1S > 0)
        if self.query_positions_T is not None:
            position_B1S = jnp.arange(self.key_segments_BS.shape[1])[None, None, :]
            if self.key_positions_BS is not None:
                position_B1S = self.key_positions_BS[:, None, :]
            mask_BTS &= position_B1S <= self.query_positions_T[None, :, None]
        return mask_BTS


class KeyValues(NamedTuple):
    """Keys and values to attend to. Heads come before length: that is the fast cache layout.

    Their H may be a divisor of the query's: then several of its heads share each of theirs.
    """

    key_BHSK: jax.Array
    value_BHSU: jax.Array
    scoring: Scoring = Scoring()


def as_cached(key_values: KeyValues) -> CachedKeyValues:
    return CachedKeyValues(key_values.key_BHSK.swapaxes(2, 3), key_values.value_BHSU)


@jax.named_scope("attention")
def dot_product_attention(
    query_BHTK: jax.Array,
    memory: KeyValues,
    mask_BTS: jax.Array,
    dropout_rate: float = 0.0,
    rngs: DropoutRngs | None = None,
    return_weights: bool = False,
    own: KeyValues | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """softmax(Q K^T / sqrt(d_k)) V, Equation 1. Returns [B, H, T, U] and the weights.

    A decoding step computes the same over the arrays of its cache: cache.py:attend_to_cache.

    own: one more key and value for each query, which only that query sees; T of them, in order.

    The weights, [B, H, T, S], are those before dropout, in at least float32, and 0 where the mask
    is False; None unless `return_weights`.

    The mask may have size 1 in place of B or T. A query that may attend to nothing gets the
    mean of all values: finite, and never read, since only padding is masked like that.
    """
    dtype = query_BHTK.dtype
    query_BHTK = query_BHTK * jnp.asarray(query_BHTK.shape[-1] ** -0.5, dtype)
    scores_BHTS = multiply_heads("BHTK,BHSK->BHTS", query_BHTK, memory.key_BHSK, dtype)
    scores_BHTS = memory.scoring.scores(scores_BHTS, query_BHTK)
    # The paper's -inf would make NaN of a row that is masked completely.
    scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, jnp.finfo(scores_BHTS.dtype).min)
    if own is not None:
        score_BHT = multiply("BHTK,BHTK->BHT", query_BHTK, own.key_BHSK, dtype)
        scores_BHTS = jnp.concatenate([scores_BHTS, score_BHT[..., None]], axis=-1)
    weights_BHTS = jax.nn.softmax(scores_BHTS, axis=-1)
    dropped_BHTS = dropout(weights_BHTS.astype(dtype), dropout_rate, rngs)
    if own is None:
        y_BHTU = multiply_heads("BHTS,BHSU->BHTU", dropped_BHTS, memory.value_BHSU, dtype)
        y_BHTU = memory.scoring.values(y_BHTU, dropped_BHTS)
    else:
        y_BHTU = multiply("BHTS,BHSU->BHTU", dropped_BHTS[..., :-1], memory.value_BHSU, dtype)
        y_BHTU += multiply("BHT,BHTU->BHTU", dropped_BHTS[..., -1], own.value_BHSU, dtype)
        weights_BHTS = weights_BHTS[..., :-1]
    if not return_weights:
        return y_BHTU.astype(dtype), None
    return y_BHTU.astype(dtype), jnp.where(mask_BTS[:, None], weights_BHTS, 0)


def attention(
    query_BHTK: jax.Array,
    memory: KeyValues,
    mask: Mask,
    dropout_rate: float = 0.0,
    rngs: DropoutRngs | None = None,
    return_weights: bool = False,
    own: KeyValues | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """`dot_product_attention` in memory linear in T + S, unless the weights are asked for.

    More than MAX_QUERIES queries are taken in blocks, one after another. The backward pass computes
    the softmax of a block again instead of keeping it (Rabe and Staats, arXiv 2112.05682).
    """
    if query_BHTK.shape[2] <= MAX_QUERIES:
        mask_BTS = mask.dense()
        return dot_product_attention(
            query_BHTK, memory, mask_BTS, dropout_rate, rngs, return_weights, own
        )
    B, _, T, _ = query_BHTK.shape
    num_blocks = -(-T // MAX_QUERIES)
    block_size = -(-T // num_blocks)
    positions_T = mask.query_positions_T
    blocks = (
        split(query_BHTK, num_blocks, axis=2),
        # Queries that fill up the last block have segment 0: they attend to nothing.
        split(jnp.broadcast_to(mask.query_segments_BT, (B, T)), num_blocks, axis=1),
        None if positions_T is None else split(positions_T, num_blocks, axis=0),
        None if rngs is None or dropout_rate == 0 else split_rngs(rngs, B, num_blocks),
        None if own is None else jax.tree.map(lambda x: split(x, num_blocks, axis=2), own),
        None if memory.scoring.is_plain else block_size * jnp.arange(num_blocks),
    )
    # Gradients of keys and values are sums over the blocks, in the type of these copies:
    # bfloat16 would round after each block.
    copies = jax.tree.map(lambda x: x.astype(at_least_float32(x.dtype)), memory)

    def attend_block(block):
        query_BHTK, segments_BT, positions_T, rngs, own, first = block
        key_values = jax.tree.map(lambda copy, x: copy.astype(x.dtype), copies, memory)
        if first is not None:
            S = memory.key_BHSK.shape[2]
            scoring = key_values.scoring.of_queries(first, block_size, S)
            key_values = key_values._replace(scoring=scoring)
        own_mask = mask._replace(query_segments_BT=segments_BT, query_positions_T=positions_T)
        mask_BTS = own_mask.dense()
        return dot_product_attention(
            query_BHTK, key_values, mask_BTS, dropout_rate, rngs, return_weights, own
        )

    # In a loop nothing merges the two computations of a softmax, so there is no need to prevent it.
    results = jax.lax.map(jax.checkpoint(attend_block, prevent_cse=False), blocks)
    return jax.tree.map(lambda x: join(x, axis=2)[:, :, :T], results)


def fast_attention(
    query_BHTK: jax.Array,
    memory: KeyValues,
    mask: Mask,
    dropout_rate: float = 0.0,
    rngs: DropoutRngs | None = None,
) -> tuple[jax.Array, None]:
    """`attention` without its weights, by NVIDIA's kernel where that can run."""
    if memory.scoring.is_plain and _cudnn_takes(query_BHTK, memory, dropout_rate, rngs):
        return _cudnn_attention(query_BHTK, memory, mask), None
    return attention(query_BHTK, memory, mask, dropout_rate, rngs)


def _cudnn_takes(query_BHTK, memory, dropout_rate, rngs) -> bool:
    """True if cuDNN's kernel can do this: it lacks our dropout, and takes only even lengths.

    Lengths of 64, 192, 320, ... are left out. There cuDNN 9 can make NaN in gradients of queries
    whose scores are all below about -88 (pytorch/pytorch#196678): it takes keys in blocks of 128,
    and the missing half has the score 0. Such scores come late in training, if at all. Perhaps
    only the length of the keys matters; the length of the queries is checked, too.
    """
    (_, _, T, K), (_, _, S, U) = query_BHTK.shape, memory.value_BHSU.shape
    return (
        query_BHTK.dtype in (jnp.bfloat16, jnp.float16)
        and (rngs is None or dropout_rate == 0)
        and (K == U and K % 8 == 0 and K <= 128)
        and all(length % 2 == 0 and length % 128 != 64 for length in (T, S))
    )


@jax.named_scope("attention")
def _cudnn_attention(query_BHTK, memory, mask):
    # With heads after length nothing is transposed.
    arrays = (x.swapaxes(1, 2) for x in (query_BHTK, *memory[:2]))
    if mask.spans is not None:
        attend = functools.partial(packed_attention, causal=mask.query_positions_T is not None)
        return on_each_device(attend, *arrays, *mask.spans, with_heads=3).swapaxes(1, 2)
    # cuDNN gets the mask as an array that it adds to the scores, which keeps the sentences of a row
    # apart; it would ignore segment ids.
    mask_B1TS = jnp.broadcast_to(
        seeing_something(mask.dense())[:, None],
        (query_BHTK.shape[0], 1, query_BHTK.shape[2], memory.key_BHSK.shape[2]),
    )

    def attend(query_BTHK, key_BSHK, value_BSHU, mask_B1TS):
        arrays = query_BTHK, key_BSHK, value_BSHU
        return jax.nn.dot_product_attention(*arrays, mask=mask_B1TS, implementation="cudnn")

    y_BTHU = on_each_device(attend, *arrays, mask_B1TS, with_heads=3)
    return y_BTHU.swapaxes(1, 2)


def seeing_something(mask_BTS: jax.Array) -> jax.Array:
    """The mask, except that a query that sees no key, such as padding, sees all.

    Nobody reads its result. But otherwise cuDNN 9 makes NaN of the gradients of its whole sentence:
    a score of -2^41 minus a sum of such scores, both rounded, may be a large exponent of e.
    """
    return mask_BTS | ~mask_BTS.any(axis=-1, keepdims=True)


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (Section 3.2.2).

    Keys and values are computed apart from the attention itself, so that a decoder computes
    those of the memory once per sentence and keeps those of earlier tokens in its cache.
    """

    query_norm: Normalization | None = None
    key_norm: Normalization | None = None

    def __init__(self, config: LayerConfig, rngs: nnx.Rngs, positions: Positions | None = None):
        """config.attention_bias gives all four projections a bias, as in BERT but not the paper.

        positions: those of self-attention.
        """

        def linear(d_in, d_out):
            dtype = jnp.dtype(config.dtype)
            return Linear(d_in, d_out, use_bias=config.attention_bias, dtype=dtype, rngs=rngs)

        d_model, num_heads = config.d_model, config.num_heads
        self.query = linear(d_model, num_heads * config.key_size)
        self.key = linear(d_model, config.key_value_heads * config.key_size)
        self.value = linear(d_model, config.key_value_heads * config.value_size)
        self.output = linear(num_heads * config.value_size, d_model)
        if config.qk_norm:
            self.query_norm = Normalization(config, config.key_size, "rms_norm")
            self.key_norm = Normalization(config, config.key_size, "rms_norm")
        self.positions = positions or Positions(config, False, rngs)
        self.key_size, self.value_size = config.key_size, config.value_size
        self.cap = config.logit_soft_cap
        self.dropout_rate = config.attention_dropout
        self.cudnn = config.uses("cudnn_attention")

    def queries(self, x_BTD: jax.Array) -> jax.Array:
        return split_heads(self.query(x_BTD), self.key_size, self.query_norm)

    def key_values(self, x_BSD: jax.Array) -> KeyValues:
        """The keys and values of the vectors attended to."""
        return self.of_projections(self.key(x_BSD, apart=True), self.value(x_BSD, apart=True))

    def of_projections(self, key_BSX: jax.Array, value_BSX: jax.Array) -> KeyValues:
        """Keys and values from those of all heads side by side."""
        key_BHSK = split_heads(key_BSX, self.key_size, self.key_norm)
        return KeyValues(key_BHSK, split_heads(value_BSX, self.value_size), self._scoring(None))

    def __call__(
        self,
        x_BTD: jax.Array,
        memory: KeyValues,
        mask: Mask,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from x to the given keys and values. Returns [B, T, D] and the weights."""
        return self._attend(self.queries(x_BTD), memory, mask, rngs, return_weights)

    def attend_within(
        self,
        x_BTD: jax.Array,
        mask: Mask,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None, KeyValues]:
        """Self-attention of whole rows. Returns [B, T, D], the weights, and keys and values."""
        query_BHTK, memory = self._rotated(x_BTD, mask)
        distances_R = np.arange(1 - x_BTD.shape[1], x_BTD.shape[1])
        memory = memory._replace(scoring=self._scoring(distances_R))
        y_BTD, weights_BHTT = self._attend(query_BHTK, memory, mask, rngs, return_weights)
        return y_BTD, weights_BHTT, memory

    def cached_key_values(self, x_BSD: jax.Array) -> CachedKeyValues:
        """`key_values`, in the layout of a decoding step."""
        return as_cached(self.key_values(x_BSD))

    def step(
        self, x_BMD: jax.Array, parts: Sequence[tuple[CachedKeyValues, jax.Array]]
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Attends from the newest token of each hypothesis; see `attend_to_cache`.

        Returns [B, M, D] and the weights of each part.
        """
        scoring = self._scoring(None)
        return self._attend_to_cache(self.queries(x_BMD), [(*part, scoring) for part in parts])

    def step_within(
        self,
        x_BMD: jax.Array,
        earlier: CachedKeyValues,
        at: DecodingStep,
        source: CachedKeyValues | None = None,
    ) -> tuple[jax.Array, CachedKeyValues]:
        """Self-attention of the newest token of each hypothesis.

        earlier: keys and values of its earlier tokens; source: of the `at.before_B` tokens before
          these. Returns [B, M, D], and `earlier` for the next token.
        """
        query_BHMK, new = self._rotated(x_BMD, at)
        earlier = write_key_values(earlier, as_cached(new), at.step)
        positions_BX = at.own_positions_BX
        parts = [(earlier, at.mask_BMX, self._scoring(positions_BX - at.positions_BT))]
        if source is not None:
            positions_BS = jnp.arange(source.key_BHKX.shape[3])[None]
            scoring = self._scoring(positions_BS - at.positions_BT)
            parts.insert(0, (source, at.memory_mask_B1S, scoring))
        return self._attend_to_cache(query_BHMK, parts)[0], earlier

    def _rotated(self, x_BTD: jax.Array, place: Mask | DecodingStep) -> tuple[jax.Array, KeyValues]:
        memory, query_BHTK = self.key_values(x_BTD), self.queries(x_BTD)
        key_BHTK = self.positions.rotate(memory.key_BHSK, place)
        return self.positions.rotate(query_BHTK, place), memory._replace(key_BHSK=key_BHTK)

    def _scoring(self, distances: jax.Array | None) -> Scoring:
        """distances: those of self-attention."""
        scoring = Scoring() if distances is None else self.positions.scoring(distances)
        return scoring._replace(cap=np.float32(self.cap)) if self.cap else scoring

    def _attend(self, query_BHTK, memory, mask, rngs, return_weights):
        inputs = query_BHTK, memory, mask, self.dropout_rate, rngs
        if (self.cudnn or mask.spans is not None) and not return_weights:
            y_BHTU, weights_BHTS = fast_attention(*inputs)
        else:
            y_BHTU, weights_BHTS = attention(*inputs, return_weights)
        return self.output(join_heads(y_BHTU)), weights_BHTS

    def _attend_to_cache(self, query_BHMK, parts):
        y_BHMU, weights = attend_to_cache(query_BHMK, parts)
        return self.output(join_heads(y_BHMU)), weights


def split_heads(x_BTX: jax.Array, size: int, norm: Normalization | None = None) -> jax.Array:
    """Heads of a size, side by side, as [B, H, T, size]; normalised, each by itself."""
    B, T, X = x_BTX.shape
    if norm is not None:
        x_BTX = norm(x_BTX.reshape(B, T * (X // size), size))
    return x_BTX.reshape(B, T, X // size, size).swapaxes(1, 2)


def join_heads(x_BHTU: jax.Array) -> jax.Array:
    """Undoes `split_heads`."""
    B, H, T, U = x_BHTU.shape
    return x_BHTU.swapaxes(1, 2).reshape(B, T, H * U)
