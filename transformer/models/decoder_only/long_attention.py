"""Self-attention over one long sequence (Liu et al. 2018, arXiv 1801.10198, Section 4.2.3).

A config names one of three kinds by a letter for each layer. A token sees, besides itself,

    F  full      every token before it
    L  local     those before it in its own block of the sequence
    M  memory-compressed: blocks of three tokens before it, each block as one key and one value that
       a convolution makes of it, and the first token of the sequence as it is

In M a token does not see the block that it stands in. So layers of L come between: LMLML.

Letters of this file: X positions of a row, E blocks of three of a row, W tokens of a local block,
C channels that the convolution reads. A row may hold several sequences one after the other; blocks
are counted within each sequence.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.models.attention import (
    KeyValues,
    Mask,
    MultiHeadAttention,
    as_cached,
    attention,
    dot_product_attention,
    join_heads,
)
from transformer.models.cache import CachedKeyValues, DecodingStep, write_key_values
from transformer.models.layers import Linear
from transformer.models.numerics import DropoutRngs, join, split, split_rngs


class Rows(NamedTuple):
    """The sequence of its row that each token belongs to, and its position there."""

    segments_BX: jax.Array  # 1, 2, ... in order; 0 is padding, at the end
    positions_BX: jax.Array


class FullAttention(MultiHeadAttention):
    """Causal self-attention, for whole rows and for a decoder's newest tokens.

    Its memory is what a search needs of a source that was read at once: arrays that begin with B.
    Its state is what a hypothesis has besides the key_values of its tokens: arrays that begin with
    N.
    """

    def forward(
        self,
        x_BXD: jax.Array,
        rows: Rows,
        rngs: DropoutRngs | None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, Any, jax.Array | None]:
        """Attends in whole rows. Returns [B, X, D] and, for rows of one sequence, the memory.

        With `return_weights` also the weights between tokens, [B, H, X, X]; a compressed block's
        weight is shared evenly among its tokens.
        """
        mask = Mask(rows.segments_BX, rows.segments_BX, jnp.arange(x_BXD.shape[1]))
        y_BXD, weights_BHXX, memory = self.attend_within(x_BXD, mask, rngs, return_weights)
        return y_BXD, as_cached(memory), weights_BHXX

    def start(self, memory: Any, M: int) -> Any:
        """The state of M hypotheses of each sentence before their first token."""
        del memory, M
        return ()

    def decode(
        self, x_BMD: jax.Array, memory: Any, earlier: CachedKeyValues, state: Any, at: DecodingStep
    ) -> tuple[jax.Array, CachedKeyValues, Any]:
        """Attends from the newest tokens. Returns [B, M, D], and the next `earlier` and `state`."""
        return *self.step_within(x_BMD, earlier, at, memory), state


class LocalAttention(FullAttention):
    """Attention inside blocks, as in the paper; in Tensor2Tensor also to the whole block before."""

    def __init__(self, config, rngs, positions=None):
        super().__init__(config, rngs, positions)
        self.block_length = config.block_length
        self.blocks_before = int(config.local_attention == "tensor2tensor")

    def forward(self, x_BXD, rows, rngs, return_weights=False):
        key_values = self.key_values(x_BXD)
        query_BHXK = self.queries(x_BXD)
        y_BHXU, weights_BHXX = self._in_blocks(query_BHXK, key_values, rows, rngs, return_weights)
        y_BXD = self.output(join_heads(y_BHXU))
        # Later tokens see no more than the end of the source.
        X = rows.segments_BX.shape[1]
        length_B = jnp.sum(rows.segments_BX > 0, axis=1)
        most = min(X, (1 + self.blocks_before) * self.block_length - 1)
        positions_BX = length_B[:, None] + jnp.arange(-most, 0)[None]
        at_B1X1 = jnp.maximum(positions_BX, 0)[:, None, :, None]
        last = jax.tree.map(lambda x: jnp.take_along_axis(x, at_B1X1, axis=2), key_values)
        return y_BXD, (as_cached(last), positions_BX), weights_BHXX

    def decode(self, x_BMD, memory, earlier, state, at):
        earlier = write_key_values(earlier, self.cached_key_values(x_BMD), at.step)
        source, positions_BX = memory
        is_near_BX = (positions_BX >= 0) & self._is_near(at.positions_BT, positions_BX)
        own_BX = self._is_near(at.positions_BT, at.own_positions_BX)
        parts = [(source, is_near_BX[:, None]), (earlier, at.mask_BMX & own_BX[:, None])]
        return self.step(x_BMD, parts)[0], earlier, state

    def _is_near(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        first = query_positions // self.block_length - self.blocks_before
        return key_positions // self.block_length >= first

    def _in_blocks(self, query_BHXK, key_values, rows, rngs, return_weights):
        """Attends in chunks of W tokens of a row, one after another, in memory linear in X.

        The block of a chunk's first token may begin up to W - 1 tokens before the chunk, if the
        row holds several sequences.
        """
        B, _, X, _ = query_BHXK.shape
        W = self.block_length
        num_chunks = -(-X // W)
        before = min(1 + self.blocks_before, num_chunks - 1)  # chunks

        def chunks(x: jax.Array, axis: int, shift: int = 0) -> jax.Array:
            """x as [chunks, ...]; chunk c is x's chunk c - shift, or zeros before the first."""
            room = (num_chunks - shift) * W
            x = jax.lax.slice_in_dim(x, 0, min(X, room), axis=axis)
            padding = [(0, 0)] * x.ndim
            padding[axis] = (shift * W, room - x.shape[axis])
            return split(jnp.pad(x, padding), num_chunks, axis)

        def with_before(x: jax.Array, axis: int) -> jax.Array:
            parts = [chunks(x, axis, shift) for shift in range(before, -1, -1)]
            return jnp.concatenate(parts, axis=axis + 1)

        blocks = (
            chunks(query_BHXK, 2),
            jax.tree.map(lambda x: with_before(x, 2), key_values),
            jax.tree.map(lambda x: chunks(x, 1), rows),
            jax.tree.map(lambda x: with_before(x, 1), rows),
            None if rngs is None or not self.dropout_rate else split_rngs(rngs, B, num_chunks),
        )

        def attend(block):
            query_BHWK, key_values, query_rows, key_rows, rngs = block
            segments_BW1, positions_BW1 = (x[:, :, None] for x in query_rows)
            segments_B1X, positions_B1X = (x[:, None, :] for x in key_rows)
            mask_BWX = (segments_BW1 == segments_B1X) & (segments_B1X > 0)
            mask_BWX &= positions_B1X <= positions_BW1
            mask_BWX &= self._is_near(positions_BW1, positions_B1X)
            return dot_product_attention(
                query_BHWK, key_values, mask_BWX, self.dropout_rate, rngs, return_weights
            )

        if num_chunks == 1:
            y_BHXU, weights_BHXX = attend(jax.tree.map(lambda x: x[0], blocks))
            return y_BHXU[:, :, :X], weights_BHXX if not return_weights else (
                weights_BHXX[:, :, :X, :X]
            )
        y_CBHWU, weights_CBHWY = jax.lax.map(jax.checkpoint(attend, prevent_cse=False), blocks)
        weights_BHXX = None
        if return_weights:  # each chunk's columns move to where its keys stand in the row
            wide = [
                jnp.pad(x, [(0, 0)] * 3 + [(c * W, (num_chunks - 1 - c) * W)])
                for c, x in enumerate(weights_CBHWY)
            ]
            weights_BHXX = jnp.concatenate(wide, axis=2)[:, :, :X, before * W :][..., :X]
        return join(y_CBHWU, axis=2)[:, :, :X], weights_BHXX


class CompressedState(NamedTuple):
    """The part of its sequence that a hypothesis keeps."""

    pending_NxC: jax.Array  # what the convolution reads of the last two tokens
    first_NX: jax.Array  # key and value of the first token


class CompressedAttention(FullAttention):
    """Memory-compressed: a convolution of width and stride `compression` makes a block one token.

    The paper convolves keys and values; Tensor2Tensor convolves what they are projected from.
    """

    def __init__(self, config, rngs, positions=None):
        super().__init__(config, rngs, positions)
        self.width = config.compression
        self.form = config.compressed_attention
        self.key_channels = config.num_heads * config.key_size
        value_channels = config.num_heads * config.value_size

        def convolution(channels: int) -> Linear:
            dtype = jnp.dtype(config.dtype)
            return Linear(self.width * channels, channels, use_bias=True, dtype=dtype, rngs=rngs)

        if self.form == "paper":
            self.compress_key = convolution(self.key_channels)
            self.compress_value = convolution(value_channels)
        else:
            self.compress = convolution(config.d_model)

    def forward(self, x_BXD, rows, rngs, return_weights=False):
        B, X, _ = x_BXD.shape
        # 1. Blocks, anywhere in the row: the place of the last token of each.
        is_real_BX = rows.segments_BX > 0
        is_end_BX = is_real_BX & (rows.positions_BX % self.width == self.width - 1)
        ends_BE = jnp.argsort(~is_end_BX, axis=1, stable=True)[:, : max(1, X // self.width)]
        is_block_BE = jnp.take_along_axis(is_end_BX, ends_BE, axis=1)
        places_BEx = ends_BE[..., None] + jnp.arange(1 - self.width, 1)[None, None]
        places_BX1 = jnp.maximum(places_BEx, 0).reshape(B, -1)[..., None]
        key_BXC, value_BXC, inputs_BXC = self._inputs(x_BXD)
        blocks_BXC = jnp.take_along_axis(inputs_BXC, places_BX1, axis=1)
        compressed = self._compress(blocks_BXC.reshape(B, ends_BE.shape[1], -1))

        # 2. The first token of each token's sequence.
        first_BX1 = jnp.maximum(jnp.arange(X)[None] - rows.positions_BX, 0)[..., None]
        first = (jnp.take_along_axis(x_BXC, first_BX1, axis=1) for x_BXC in (key_BXC, value_BXC))
        own = self.of_projections(*first)

        # 3. A block is seen from the token after it on.
        segments_BE = jnp.take_along_axis(rows.segments_BX, ends_BE, axis=1) * is_block_BE
        mask = Mask(rows.segments_BX, segments_BE, jnp.arange(X), ends_BE + 1)
        inputs = self.queries(x_BXD), compressed, mask, self.dropout_rate, rngs, return_weights
        y_BHXU, weights_BHXE = attention(*inputs, own=own)
        y_BXD = self.output(join_heads(y_BHXU))

        # 4. The tokens left over wait for those that come.
        length_B1 = jnp.sum(is_real_BX, axis=1, keepdims=True)
        last_Bx = jnp.maximum(length_B1 + jnp.arange(1 - self.width, 0)[None], 0)
        pending_BxC = jnp.take_along_axis(inputs_BXC, last_Bx[..., None], axis=1)
        first_BC = jnp.concatenate([key_BXC[:, 0], value_BXC[:, 0]], axis=-1)
        memory = as_cached(compressed), is_block_BE, CompressedState(pending_BxC, first_BC)
        if not return_weights:
            return y_BXD, memory, None
        is_member_BEX = (places_BEx[..., None] == jnp.arange(X)[None, None, None]).any(axis=2)
        weights_BHXX = jnp.einsum("BHXE,BEY->BHXY", weights_BHXE, is_member_BEX / self.width)
        is_first_BXX = first_BX1 == jnp.arange(X)[None, None]
        rest_BHX1 = 1 - weights_BHXE.sum(axis=-1, keepdims=True)  # that of the first token
        return y_BXD, memory, weights_BHXX + rest_BHX1 * is_first_BXX[:, None]

    def start(self, memory, M):
        return jax.tree.map(lambda x: jnp.repeat(x, M, axis=0), memory[2])

    def decode(self, x_BMD, memory, earlier, state, at):
        B, M, _ = x_BMD.shape
        source, is_block_BE, _ = memory
        # 1. The block that ends here, if one does; otherwise nobody will see this slot.
        key_BMC, value_BMC, inputs_BMC = self._inputs(x_BMD)
        inputs_N1C = inputs_BMC.reshape(B * M, 1, -1)
        last_NxC = jnp.concatenate([state.pending_NxC, inputs_N1C], axis=1)
        block = as_cached(self._compress(last_NxC.reshape(B, M, -1)))
        earlier = write_key_values(earlier, block, at.step)
        ends_BX = at.own_positions_BX
        is_seen_BX = ends_BX % self.width == self.width - 1
        is_seen_BX &= ends_BX < at.positions_BT

        # 2. The first token, which may be this one.
        newest_NC = jnp.concatenate([key_BMC, value_BMC], axis=-1).reshape(B * M, -1)
        is_first_N1 = jnp.repeat(at.positions_BT == 0, M)[:, None]
        first_NC = jnp.where(is_first_N1, newest_NC, state.first_NX)
        first_BMC = first_NC.reshape(B, M, -1)
        key_BMC, value_BMC = jnp.split(first_BMC, [self.key_channels], axis=-1)
        first = as_cached(self.of_projections(key_BMC, value_BMC))

        parts = [
            (source, is_block_BE[:, None]),
            (earlier, at.mask_BMX & is_seen_BX[:, None]),
            (first, jnp.eye(M, dtype=bool)[None]),
        ]
        return self.step(x_BMD, parts)[0], earlier, CompressedState(last_NxC[:, 1:], first_NC)

    def _inputs(self, x_BXD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The tokens' own keys and values, and the inputs of the convolution."""
        key_BXC, value_BXC = self.key(x_BXD), self.value(x_BXD)
        if self.form == "paper":
            return key_BXC, value_BXC, jnp.concatenate([key_BXC, value_BXC], axis=-1)
        return key_BXC, value_BXC, x_BXD

    def _compress(self, blocks_BEC: jax.Array) -> KeyValues:
        """The convolution: a linear layer over the channels of a block's tokens side by side."""
        B, E, _ = blocks_BEC.shape
        if self.form == "paper":
            tokens_BExC = blocks_BEC.reshape(B, E, self.width, -1)
            key_BExC, value_BExC = jnp.split(tokens_BExC, [self.key_channels], axis=-1)
            key_BEC = self.compress_key(key_BExC.reshape(B, E, -1))
            value_BEC = self.compress_value(value_BExC.reshape(B, E, -1))
        else:
            x_BED = self.compress(blocks_BEC)
            key_BEC, value_BEC = self.key(x_BED), self.value(x_BED)
        return self.of_projections(key_BEC, value_BEC)


KINDS = {"F": FullAttention, "L": LocalAttention, "M": CompressedAttention}
