"""The parts of ConvS2S, and its config: normalised products, attention and blocks (1705.03122)."""

import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.family import ModelSection
from transformer.models.layers import MOST_LAYERS
from transformer.models.numerics import dropout, multiply, shifted
from transformer.system.errors import UserError, check_choice, check_range, setting

HALF = 0.5**0.5  # keeps the variance of a sum of two


class Block(NamedTuple):
    channels: int
    width: int


@dataclasses.dataclass(frozen=True)
class ConvolutionalConfig(ModelSection):
    """See configs/convs2s_iwslt.py."""

    embedding_size: int
    encoder_blocks: str
    decoder_blocks: str
    output_size: int
    max_positions: int
    weight_normalization: bool
    share_attention: bool
    dropout: float = setting(architecture=False)
    dtype: str

    def __post_init__(self):
        check_range(self, "model", "embedding_size output_size max_positions", 1)
        check_range(self, "model", "dropout", 0, 1)
        check_choice(self, "model", "dtype", ("float32", "bfloat16"))
        widths = {block.channels for block in self.decoder}
        if self.share_attention and len(widths) > 1:
            raise UserError(
                "model.share_attention is True, which needs as many channels in all blocks of "
                f"the decoder; model.decoder_blocks is {self.decoder_blocks!r}"
            )
        if even := [block.width for block in self.encoder if block.width % 2 == 0]:
            raise UserError(
                f"model.encoder_blocks has the width {even[0]}; the encoder needs odd ones"
            )

    @property
    def encoder(self) -> list[Block]:
        return _blocks("encoder_blocks", self.encoder_blocks)

    @property
    def decoder(self) -> list[Block]:
        return _blocks("decoder_blocks", self.decoder_blocks)


def _blocks(field: str, text: str) -> list[Block]:
    """Blocks of a text: "512x3x9 768x3x4" is nine of 512 channels and width 3, then four of 768."""
    size = r"[1-9]\d{0,5}"
    if not re.fullmatch(rf"({size}x{size}x{size}( |$))+(?<! )", text):
        raise UserError(
            f"model.{field} is {text!r}; it must be groups such as '512x3x9 768x3x4': channels, "
            "width of the convolution, and how many such blocks; each below 1,000,000"
        )
    groups = [tuple(map(int, group.split("x"))) for group in text.split()]
    if (number := sum(count for _, _, count in groups)) > MOST_LAYERS:
        raise UserError(f"model.{field} has {number:,} blocks; give at most {MOST_LAYERS:,}")
    return [Block(channels, width) for channels, width, count in groups for _ in range(count)]


class NormalizedLinear(nnx.Module):
    """x W + b, with W = g v / |v| for each output if weights are normalised (Section 3.5).

    Initially g = |v|, so that W = v. As a convolution, it takes the windows of x as inputs.
    """

    def __init__(self, d_in: int, d_out: int, std: float, c: ConvolutionalConfig, rngs: nnx.Rngs):
        v_XO = jax.random.normal(rngs.params(), (d_in, d_out), jnp.float32) * std
        self.direction_XO = nnx.Param(v_XO)
        if c.weight_normalization:
            self.length_O = nnx.Param(jnp.linalg.norm(v_XO, axis=0))
        self.bias_O = nnx.Param(jnp.zeros(d_out, jnp.float32))
        self.normalized, self.dtype = c.weight_normalization, jnp.dtype(c.dtype)

    def kernel(self) -> jax.Array:
        v_XO = self.direction_XO[...]
        if not self.normalized:
            return v_XO
        return v_XO * (self.length_O[...] / jnp.linalg.norm(v_XO, axis=0))[None]

    def __call__(self, x_BTX: jax.Array) -> jax.Array:
        return self.unrounded(x_BTX).astype(self.dtype)

    def unrounded(self, x_BTX: jax.Array) -> jax.Array:
        """The result in at least float32."""
        y_BTO = multiply("BTX,XO->BTO", x_BTX, self.kernel(), self.dtype)
        return y_BTO + self.bias_O[...][None, None]


class Memory(NamedTuple):
    keys_BSE: jax.Array  # z, the encoder's output
    values_BSE: jax.Array  # (z + e) sqrt(0.5), with the embeddings e


class Attention(nnx.Module):
    """Attention from a block's output h, with the target's embedding, to the source (3.3)."""

    def __init__(self, channels: int, c: ConvolutionalConfig, rngs: nnx.Rngs):
        E = c.embedding_size
        self.query = NormalizedLinear(channels, E, channels**-0.5, c, rngs)
        self.output = NormalizedLinear(E, channels, E**-0.5, c, rngs)

    def __call__(self, h_BTC, target_BTE, memory: Memory, mask_BTS):
        """h with its context, [B, T, C], and the weights [B, T, S]."""
        dtype = h_BTC.dtype
        query_BTE = (self.query(h_BTC) + target_BTE) * HALF
        scores_BTS = multiply("BTE,BSE->BTS", query_BTE, memory.keys_BSE, dtype)
        scores_BTS = jnp.where(mask_BTS, scores_BTS, jnp.finfo(scores_BTS.dtype).min)
        weights_BTS = jax.nn.softmax(scores_BTS)
        context_BTE = multiply("BTS,BSE->BTE", weights_BTS, memory.values_BSE, dtype)
        # A mean of m vectors has a variance m times too small.
        length_BT1 = jnp.sum(mask_BTS, axis=-1, keepdims=True)
        context_BTE = (context_BTE * jnp.sqrt(length_BT1)).astype(dtype)
        h_BTC = (self.output(context_BTE) + h_BTC) * HALF
        return h_BTC, jnp.where(mask_BTS, weights_BTS, 0)


class ConvolutionalBlock(nnx.Module):
    """Dropout, convolution, gated linear unit, and a residual connection (Section 3.2)."""

    def __init__(self, d_in: int, block: Block, c: ConvolutionalConfig, causal: bool, rngs):
        channels, self.width = block
        inputs = self.width * d_in
        std = (4 * (1 - c.dropout) / inputs) ** 0.5
        self.convolution = NormalizedLinear(inputs, 2 * channels, std, c, rngs)
        self.projects = d_in != channels
        if self.projects:
            self.residual = NormalizedLinear(d_in, channels, d_in**-0.5, c, rngs)
        self.before = self.width - 1 if causal else self.width // 2
        self.dropout_rate = c.dropout

    def __call__(self, x_BTI, segments_BT, rngs, attend=None):
        """Whole rows, [B, T, C]; other sentences of a row, and padding, count as zeros."""
        dropped_BTI = dropout(x_BTI, self.dropout_rate, rngs)
        taps = []
        for tap in range(self.width):
            offset = tap - self.before
            tap_BTI = shifted(dropped_BTI, offset)
            same_BT = shifted(segments_BT, offset) == segments_BT
            taps.append(jnp.where(same_BT[..., None], tap_BTI, 0) if offset else tap_BTI)
        return self._finish(x_BTI, jnp.concatenate(taps, axis=-1), attend)

    def step(self, x_N1I, before_NWI, attend):
        """Only the newest token, [N, 1, C], and the inputs that the next one needs."""
        window_NWI = jnp.concatenate([before_NWI, x_N1I], axis=1)
        window_N1X = window_NWI.reshape(x_N1I.shape[0], 1, -1)
        return self._finish(x_N1I, window_N1X, attend), window_NWI[:, 1:]

    def _finish(self, x_BTI, window_BTX, attend):
        a_BTC, b_BTC = jnp.split(self.convolution(window_BTX), 2, axis=-1)
        y_BTC = a_BTC * jax.nn.sigmoid(b_BTC)
        if attend is not None:
            y_BTC = attend(y_BTC)
        residual_BTC = self.residual(x_BTI) if self.projects else x_BTI
        return (y_BTC + residual_BTC) * HALF
