"""Convolutional sequence-to-sequence learning ("ConvS2S"; Gehring et al. 2017, arXiv 1705.03122).

Each block has a convolution and a gated linear unit; every decoder block attends to the source.
Where the paper gives no detail, this follows fairseq, its authors' code. The blocks are in
convolutional_blocks.py. Letters of both files: E embedding, I and O inputs and outputs of a
product, C channels, W width of a convolution, X = W I.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.models.attention import Mask
from transformer.models.cache import attention_to_see
from transformer.models.convolutional.convolutional_blocks import (
    HALF,
    Attention,
    Block,
    ConvolutionalBlock,
    ConvolutionalConfig,
    Memory,
    NormalizedLinear,
)
from transformer.models.encoder_decoder import Decoded, EncoderDecoder, segments_or_one
from transformer.models.family import Family, Sizes
from transformer.models.loss import OutputLayer
from transformer.models.numerics import dropout
from transformer.models.positions import segment_positions


class Side(nnx.Module):
    """Embeddings, positions and blocks of the encoder or of the decoder."""

    def __init__(self, vocab_size, blocks: list[Block], d_out, c, causal: bool, rngs: nnx.Rngs):
        E, self.dtype = c.embedding_size, jnp.dtype(c.dtype)
        table_VE, positions_PE = (
            jax.random.normal(rngs.params(), (rows, E), jnp.float32) * 0.1
            for rows in (vocab_size, c.max_positions)
        )
        self.embedding_VE, self.positions_PE = nnx.Param(table_VE), nnx.Param(positions_PE)
        first, last = blocks[0].channels, blocks[-1].channels
        self.input = NormalizedLinear(E, first, ((1 - c.dropout) / E) ** 0.5, c, rngs)
        sizes = [first, *[block.channels for block in blocks[:-1]]]
        self.blocks = nnx.List(
            [ConvolutionalBlock(n, block, c, causal, rngs) for n, block in zip(sizes, blocks)]
        )
        self.output = NormalizedLinear(last, d_out, last**-0.5, c, rngs)

    def embed(self, tokens_BT: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Embeddings plus positions; positions past the table share its last row."""
        place_BT = jnp.minimum(positions_BT, len(self.positions_PE) - 1)
        x_BTE = self.embedding_VE[...][tokens_BT] + self.positions_PE[...][place_BT]
        return x_BTE.astype(self.dtype)


class Convolutional(EncoderDecoder):
    """The model of Figure 1."""

    layer_name = "block"

    def __init__(self, config: ConvolutionalConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        c = self.config = config
        self.dtype = jnp.dtype(c.dtype)
        self.encoder = Side(sizes.source_vocab, c.encoder, c.embedding_size, c, False, rngs)
        self.decoder = Side(sizes.target_vocab, c.decoder, c.output_size, c, True, rngs)
        count = 1 if c.share_attention else len(c.decoder)
        attentions = [Attention(block.channels, c, rngs) for block in c.decoder[:count]]
        self.attentions = nnx.List(attentions)
        std = ((1 - c.dropout) / c.output_size) ** 0.5
        self.logits = NormalizedLinear(c.output_size, sizes.target_vocab, std, c, rngs)

    def attention_maps(self, weights: list[jax.Array]) -> dict[str, list[jax.Array]]:
        return {"cross": [weights_BTS[:, None] for weights_BTS in weights]}

    def position_table(self, length: int) -> jax.Array:
        return self.encoder.positions_PE[...][:length]

    def output_layer(self) -> OutputLayer:
        return OutputLayer(self.logits.kernel().T, self.logits.bias_O[...], self.dtype)

    def logits_of(self, y_BTO: jax.Array) -> jax.Array:
        return self.logits.unrounded(y_BTO)

    def encode(self, src_BS, src_segments_BS=None, rngs=None) -> Memory:
        segments_BS = segments_or_one(src_BS, src_segments_BS)
        x_BSE = self.encoder.embed(src_BS, segment_positions(segments_BS))
        e_BSE = dropout(x_BSE, self.config.dropout, rngs)
        z_BSC = self.encoder.input(e_BSE)
        for block in self.encoder.blocks:
            z_BSC = block(z_BSC, segments_BS, rngs)
        # Every attention adds a gradient by way of its keys, and one by way of its values.
        z_BSE = scale_gradient(self.encoder.output(z_BSC), 0.5 / len(self.decoder.blocks))
        return Memory(z_BSE, (z_BSE + e_BSE) * HALF)

    def decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> Decoded:
        """All target positions at once; always returns the weights of each block, [B, T, S]."""
        src_segments_BS = segments_or_one(src_BS, src_segments_BS)
        segments_BT = segments_or_one(tgt_in_BT, tgt_segments_BT)
        memory = self.encode(src_BS, src_segments_BS, rngs)
        mask_BTS, weights = Mask(segments_BT, src_segments_BS).dense(), []

        e_BTE = self.decoder.embed(tgt_in_BT, segment_positions(segments_BT))
        e_BTE = dropout(e_BTE, self.config.dropout, rngs)
        y_BTC = self.decoder.input(e_BTE)
        for block, attention in zip(self.decoder.blocks, self._attentions(), strict=True):

            def attend(h_BTC, attention=attention):
                h_BTC, weights_BTS = attention(h_BTC, e_BTE, memory, mask_BTS)
                weights.append(weights_BTS)
                return h_BTC

            y_BTC = block(y_BTC, segments_BT, rngs, attend)
        return Decoded(dropout(self.decoder.output(y_BTC), self.config.dropout, rngs), weights)

    def _attentions(self) -> list[Attention]:
        """The attention of each block."""
        times = len(self.decoder.blocks) if self.config.share_attention else 1
        return [*self.attentions] * times

    def init_cache(self, memory, src_BS, num_hypotheses, max_length):
        """A hypothesis has the last W - 1 inputs of each block."""
        rows, blocks = src_BS.shape[0] * num_hypotheses, self.config.decoder
        inputs = [blocks[0].channels, *[block.channels for block in blocks[:-1]]]
        return {
            "step": jnp.zeros((), jnp.int32),
            "sentence": {"memory": memory, "segments": segments_or_one(src_BS, None)},
            "hypothesis": [
                jnp.zeros((rows, block.width - 1, size), self.dtype)
                for size, block in zip(inputs, blocks, strict=True)
            ],
        }

    def decode_step(self, tokens_N, cache):
        memory, step = cache["sentence"]["memory"], cache["step"]
        mask_B1S = (cache["sentence"]["segments"] > 0)[:, None]
        by_sentence = (mask_B1S.shape[0], -1)  # the M hypotheses of a sentence share its memory

        e_N1E = self.decoder.embed(tokens_N[:, None], step[None, None])
        y_N1C, hypothesis, weights = self.decoder.input(e_N1E), [], []
        blocks = zip(self.decoder.blocks, self._attentions(), strict=True)
        for number, (block, attention) in enumerate(blocks):

            def attend(h_N1C, attention=attention):
                h_BMC, e_BME = (x.reshape(*by_sentence, x.shape[-1]) for x in (h_N1C, e_N1E))
                h_BMC, weights_BMS = attention(h_BMC, e_BME, memory, mask_B1S)
                weights.append(weights_BMS[:, None])
                return h_BMC.reshape(h_N1C.shape)

            y_N1C, before_NWI = block.step(y_N1C, cache["hypothesis"][number], attend)
            hypothesis.append(before_NWI)
        cache = {**cache, "step": step + 1, "hypothesis": hypothesis}
        if "attention" in cache:
            cache["attention"] = attention_to_see(weights)
        return self.logits_of(self.decoder.output(y_N1C))[:, 0], cache


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_gradient(x: jax.Array, factor: float) -> jax.Array:
    """x, with its gradient multiplied by the factor (Section 3.5)."""
    return x


scale_gradient.defvjp(lambda x, factor: (x, None), lambda factor, _, gradient: (gradient * factor,))


def training_flops(
    config: ConvolutionalConfig,
    sizes: Sizes,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
) -> np.ndarray:
    """FLOPs to train on each pair once: products, forward and (twice that) backward.

    Padding, dropout, activations and the normalisation of weights do not count.
    """
    c, E = config, config.embedding_size
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)

    def token(blocks, d_out):
        size = total = blocks[0].channels
        total = E * size + blocks[-1].channels * d_out
        for channels, width in blocks:
            total += width * size * 2 * channels + (size * channels if size != channels else 0)
            size = channels
        return total

    projections = sum(2 * block.channels * E for block in c.decoder)
    output = c.output_size * sizes.target_vocab
    attention = s * t * 2 * E * len(c.decoder)
    products = s * token(c.encoder, E)
    products += t * (token(c.decoder, c.output_size) + projections + output)
    return 3 * 2 * (products + attention)


FAMILY = Family(
    config=ConvolutionalConfig,
    build=lambda config, sizes, rngs: Convolutional(config, sizes, rngs=rngs),
    # The gated linear unit halves the channels, so the inputs are split, not the channels.
    sharding=(
        (r"(encoder|decoder)/embedding_VE", P("tensor", "fsdp")),
        (r"(encoder|decoder)/positions_PE", P(None, "fsdp")),
        (r"logits/direction_XO", P("fsdp", "tensor")),
        (r"logits/(length|bias)_O", P("tensor")),
        (r"(?!logits/).+/direction_XO", P("fsdp")),
        (r"(?!logits/).+/(length|bias)_O", P()),
    ),
    flops=training_flops,
    packs=True,
)
