"""The Transformer (Section 3, Figure 1)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.vocabulary import BOS, EOS
from transformer.models.blocks import (
    D_MODEL,
    LAYER_SHARDING,
    VOCABULARY,
    DecoderLayer,
    EncoderLayer,
    maybe_remat,
    scale_by_beta,
)
from transformer.models.cache import (
    attention_to_see,
    decoding_step,
    empty_key_values,
    first_ancestors,
)
from transformer.models.encoder_decoder import (
    SHARE_EMBEDDINGS,
    AttentionWeights,
    Decoded,
    SharedEmbeddings,
    check_shared,
    segments_or_one,
)
from transformer.models.family import Family, Sizes
from transformer.models.layers import MOST_LAYERS, LayerConfig, last_norm
from transformer.models.numerics import dropout
from transformer.models.positions import ENCODINGS, KINDS, of_stack, segment_positions
from transformer.system.errors import UserError, check_choice, check_range


@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """The columns of Table 3 and the settings the paper leaves open; see configs/base.py."""

    num_encoder_layers: int
    num_decoder_layers: int
    max_positions: int
    share_embeddings: str
    scale_embeddings: bool
    output_bias: bool = False  # work directories of earlier commits lack it
    words_per_position: int = 1  # same
    scale_outputs: bool = False  # same
    starts_with_eos: bool = False  # same

    position_kinds = tuple(KINDS)

    def __post_init__(self):
        super().__post_init__()
        check_range(self, "model", "max_positions words_per_position", 1)
        layers = "num_encoder_layers num_decoder_layers"
        check_range(self, "model", layers, 1, MOST_LAYERS + 1)
        check_choice(self, "model", "share_embeddings", SHARE_EMBEDDINGS)

    @property
    def depths(self) -> tuple[int, int]:
        return self.num_encoder_layers, self.num_decoder_layers


class Transformer(SharedEmbeddings):
    """The encoder-decoder of Figure 1."""

    def __init__(self, config: TransformerConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        super().__init__(config, sizes, rngs=rngs)
        if config.positions == "learned":
            init = nnx.initializers.normal(stddev=config.d_model**-0.5)
            shape = (config.max_positions, config.d_model)
            self.source_positions = nnx.Param(init(rngs.params(), shape, jnp.float32))
            self.target_positions = nnx.Param(init(rngs.params(), shape, jnp.float32))
        if config.output_bias:
            self.output_bias_V = nnx.Param(jnp.zeros(sizes.target_vocab, jnp.float32))

        encoder = of_stack(config, False, config.num_encoder_layers, rngs)
        decoder = of_stack(config, True, config.num_decoder_layers, rngs)
        self.encoder_layers = nnx.List([EncoderLayer(config, rngs, x) for x in encoder])
        self.decoder_layers = nnx.List([DecoderLayer(config, rngs, x) for x in decoder])
        scale_by_beta(config, self.encoder_layers, False)
        scale_by_beta(config, self.decoder_layers, True)
        self.encoder_norm, self.decoder_norm = last_norm(config), last_norm(config)

    def position_table(self, length: int) -> jax.Array | None:
        if self.config.positions == "learned":
            return self.source_positions[...][:length]
        return super().position_table(length)

    def encode(self, src_BS, src_segments_BS=None, rngs=None) -> jax.Array:
        """The memory: the encoder's output, [B, S, D], or [B, S / words_per_position, D]."""
        return self._encode(src_BS, src_segments_BS, rngs, return_weights=False)[0]

    def _encode(self, src_BS, src_segments_BS, rngs, return_weights):
        src_segments_BS = self.source_segments(src_BS, src_segments_BS)
        mask = self.mask(src_segments_BS, src_segments_BS, rngs)
        x_BSD = self._embed_source(src_BS, segment_positions(src_segments_BS), rngs)
        weights = []
        for layer in self.encoder_layers:
            run = functools.partial(layer, mask=mask, rngs=rngs, return_weights=return_weights)
            x_BSD, weights_BHSS = maybe_remat(self.config, run)(x_BSD)
            weights.append(weights_BHSS)
        return self.encoder_norm(x_BSD), weights

    def decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> Decoded:
        """The decoder of Figure 1 at all target positions at once; weights: `AttentionWeights`."""
        memory_BSD, encoder = self._encode(src_BS, src_segments_BS, rngs, return_weights)
        src_segments_BS = self.source_segments(src_BS, src_segments_BS)
        tgt_segments_BT = segments_or_one(tgt_in_BT, tgt_segments_BT)
        positions_T = jnp.arange(tgt_in_BT.shape[1])
        self_mask = self.mask(tgt_segments_BT, tgt_segments_BT, rngs, positions_T)
        memory_mask = self.mask(tgt_segments_BT, src_segments_BS, rngs)

        y_BTD = self._embed_target(tgt_in_BT, segment_positions(tgt_segments_BT), rngs)
        weights = AttentionWeights(encoder, [], [])

        def decode_layer(layer, y_BTD, memory_BSD):
            memory = layer.cross_attention.key_values(memory_BSD)
            return layer(y_BTD, memory, self_mask, memory_mask, rngs, return_weights)

        for layer in self.decoder_layers:
            run = maybe_remat(self.config, functools.partial(decode_layer, layer))
            y_BTD, (self_weights_BHTT, cross_weights_BHTS) = run(y_BTD, memory_BSD)
            weights.decoder.append(self_weights_BHTT)
            weights.cross.append(cross_weights_BHTS)
        return Decoded(self.decoder_norm(y_BTD), weights)

    def init_cache(self, memory_BSD, src_BS, num_hypotheses, max_length):
        layers = self.decoder_layers
        memory = [layer.cross_attention.cached_key_values(memory_BSD) for layer in layers]
        return {
            "step": jnp.zeros((), jnp.int32),
            "sentence": {"memory": memory, "segments": self.source_segments(src_BS, None)},
            "hypothesis": first_ancestors(src_BS.shape[0], num_hypotheses, max_length),
            "key_values": [empty_key_values(x, num_hypotheses, max_length) for x in memory],
        }

    def decode_step(self, tokens_N, cache):
        step, sentence = cache["step"], cache["sentence"]
        at = decoding_step(step, cache["hypothesis"], sentence["segments"], cache["key_values"][0])
        tokens_BM = tokens_N.reshape(sentence["segments"].shape[0], -1)
        y_BMD = self._embed_target(tokens_BM, step[None, None], None)
        key_values, weights = [], []
        for layer, memory, earlier in zip(
            self.decoder_layers, sentence["memory"], cache["key_values"], strict=True
        ):
            y_BMD, extended, weights_BHMS = layer.step(y_BMD, memory, earlier, at)
            key_values.append(extended)
            weights.append(weights_BHMS)
        cache = {**cache, "step": step + 1, "hypothesis": at.ancestors_NL, "key_values": key_values}
        if "attention" in cache:
            self.check_aligns_words()
            cache["attention"] = attention_to_see(weights)
        y_N1D = self.decoder_norm(y_BMD).reshape(tokens_N.shape[0], 1, -1)
        return self.logits_of(y_N1D)[:, 0], cache

    def _embed_source(self, src_BS, positions_BS, rngs):
        table = self.source_positions[...] if self.config.positions == "learned" else None
        return self._embed(self._embed_words(src_BS), table, positions_BS, rngs)

    def _embed_target(self, tgt_BT, positions_BT, rngs):
        table = self.target_positions[...] if self.config.positions == "learned" else None
        if self.config.starts_with_eos:
            tgt_BT = jnp.where(tgt_BT == BOS, EOS, tgt_BT)
        return self._embed(self.target_embedding.embed(tgt_BT), table, positions_BT, rngs)

    def _embed(self, x_BTD, position_table, positions_BT, rngs):
        """Embeddings plus positional encodings, then dropout (Sections 3.4, 3.5, 5.4)."""
        encoding_BTD = None
        if encode := ENCODINGS.get(self.config.positions):
            if positions_BT.shape[1] == 1:  # a decoding step: all positions are the same
                encoding_BTD = encode(positions_BT[0], self.config.d_model)[None]
            else:  # no position in a row exceeds its length
                encoding_TD = encode(jnp.arange(x_BTD.shape[1]), self.config.d_model)
                encoding_BTD = encoding_TD[positions_BT]
        elif position_table is not None:
            # Positions past the table share its last row, which training has seen if the table
            # is no longer than training sentences.
            encoding_BTD = position_table[jnp.minimum(positions_BT, len(position_table) - 1)]
        if encoding_BTD is not None:
            x_BTD += encoding_BTD.astype(self.dtype)
        return dropout(x_BTD, self.config.dropout, rngs)


def build(config: TransformerConfig, sizes: Sizes, rngs: nnx.Rngs) -> Transformer:
    """The module; raises UserError where the config does not fit the data."""
    check_shared(config.share_embeddings, sizes)
    longest = min(sizes.max_source_length, sizes.max_target_length)
    if config.positions == "learned" and config.max_positions > longest:
        raise UserError(
            f"model.max_positions = {config.max_positions}, but training would never reach the "
            f"last of these: data.max_source_length is {sizes.max_source_length} and "
            f"data.max_target_length {sizes.max_target_length}; set it to {longest} or less"
        )
    return Transformer(config, sizes, rngs=rngs)


def training_flops(
    config: TransformerConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs to train on each pair once: matrix products, forward and (twice that) backward.

    Padding, dropout, normalisation and recomputation do not count; attention counts every
    position of its own sentence, causally masked or not.
    """
    c = config
    s, t = source_lengths / c.words_per_position, target_lengths.astype(np.float64)
    each = c.query_weights + c.key_weights + c.feed_forward_weights
    encoder = s * each + s * s * c.self_attention_pair
    decoder = t * each + t * t * c.self_attention_pair
    # In attention over the memory, queries and outputs come from target tokens, keys and values
    # from source tokens.
    decoder += t * c.query_weights + s * c.key_weights + s * t * c.attention_pair
    output = t * c.d_model * sizes.target_vocab
    encoder_layers, decoder_layers = c.depths
    return 3 * 2 * (encoder_layers * encoder + decoder_layers * decoder + output)


FAMILY = Family(
    config=TransformerConfig,
    build=build,
    sharding=(
        (r"(source|target|output)_embedding/table_VD", P(VOCABULARY, D_MODEL)),
        (r"(source|target)_positions", P(None, D_MODEL)),
        (r"word_masks_WD", P()),
        (r"output_bias_V", P(VOCABULARY)),
        *LAYER_SHARDING,
        (r"(encoder|decoder)_norm/(scale|bias)", P()),
    ),
    flops=training_flops,
    packs=True,
)
