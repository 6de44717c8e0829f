"""The Transformer (Section 3, Figure 1)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.batches import Batch
from transformer.data.vocabulary import PAD
from transformer.models.attention import KeysValues, MultiHeadAttention
from transformer.models.family import Family, Sizes
from transformer.models.layers import (
    ACTIVATIONS,
    AddAndNorm,
    Embedding,
    FeedForward,
    layer_norm,
)
from transformer.models.loss import Loss, output_loss
from transformer.models.masks import Mask
from transformer.models.numerics import DropoutRngs, dropout
from transformer.models.positions import segment_positions, sinusoidal_encoding
from transformer.system.errors import UserError, check_choice, check_range, setting

Cache = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The columns of Table 3 and the choices the paper leaves open; see configs/base.py."""

    family: str
    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    dropout: float = setting(architecture=False)
    attention_dropout: float = setting(architecture=False)
    activation_dropout: float = setting(architecture=False)
    activation: str
    norm: str
    positions: str
    max_positions: int
    share_embeddings: str
    dtype: str

    def __post_init__(self):
        sizes = "num_encoder_layers num_decoder_layers d_model d_ff num_heads max_positions"
        check_range(self, "model", sizes, 1)
        check_range(self, "model", "d_k d_v", 0)
        check_range(self, "model", "dropout attention_dropout activation_dropout", 0, 1)
        check_choice(self, "model", "activation", ACTIVATIONS)
        check_choice(self, "model", "norm", ("post", "pre"))
        check_choice(self, "model", "positions", ("sinusoidal", "learned"))
        check_choice(self, "model", "share_embeddings", ("all", "decoder", "none"))
        check_choice(self, "model", "dtype", ("float32", "bfloat16", "float64"))
        if self.dtype == "float64" and not jax.config.jax_enable_x64:
            raise UserError("model.dtype is 'float64', which JAX has only with JAX_ENABLE_X64=1")
        if not (self.d_k and self.d_v) and self.d_model % self.num_heads:
            raise UserError(
                f"model.d_model = {self.d_model} is not divisible by model.num_heads = "
                f"{self.num_heads}; change one of them, or set model.d_k and model.d_v"
            )

    @property
    def key_size(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        return self.d_v or self.d_model // self.num_heads


class EncoderLayer(nnx.Module):
    """Self-attention and feed-forward network, each in add & norm (Figure 1, left)."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.self_attention = _attention(config, rngs)
        self.self_attention_norm = _add_and_norm(config, rngs)
        self.feed_forward = _feed_forward(config, rngs)
        self.feed_forward_norm = _add_and_norm(config, rngs)

    def __call__(self, x_BSD: jax.Array, mask: Mask, rngs: DropoutRngs | None = None) -> jax.Array:
        # 1. Self-attention.
        y_BSD = self.self_attention_norm.before(x_BSD)
        y_BSD = self.self_attention(y_BSD, self.self_attention.keys_values(y_BSD), mask, rngs)
        x_BSD = self.self_attention_norm.after(x_BSD, y_BSD, rngs)
        # 2. Feed-forward network.
        y_BSD = self.feed_forward(self.feed_forward_norm.before(x_BSD), rngs)
        return self.feed_forward_norm.after(x_BSD, y_BSD, rngs)


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention over the memory, feed-forward (Figure 1, right)."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.self_attention = _attention(config, rngs)
        self.self_attention_norm = _add_and_norm(config, rngs)
        self.cross_attention = _attention(config, rngs)
        self.cross_attention_norm = _add_and_norm(config, rngs)
        self.feed_forward = _feed_forward(config, rngs)
        self.feed_forward_norm = _add_and_norm(config, rngs)

    def __call__(
        self,
        x_BTD: jax.Array,
        memory: KeysValues,
        self_mask: Mask,
        memory_mask: Mask,
        rngs: DropoutRngs | None = None,
        cache: KeysValues | None = None,
        step: jax.Array | None = None,
    ) -> tuple[jax.Array, KeysValues]:
        """Returns the layer's output and the keys and values its self-attention used.

        With a cache, x is the single token number `step` of each hypothesis: its key and
        value are written there, and it attends to the whole cache (the mask hides the rest).
        """
        # 1. Masked self-attention.
        y_BTD = self.self_attention_norm.before(x_BTD)
        keys_values = self.self_attention.keys_values(y_BTD)
        if cache is not None:
            keys_values = jax.tree.map(
                lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, step, axis=2),
                cache,
                keys_values,
            )
        y_BTD = self.self_attention(y_BTD, keys_values, self_mask, rngs)
        x_BTD = self.self_attention_norm.after(x_BTD, y_BTD, rngs)
        # 2. Attention over the memory. In a search the M hypotheses of a sentence take the
        #    place of T, so that they share one copy of its memory.
        y_BTD = self.cross_attention_norm.before(x_BTD)
        y_BTD = y_BTD.reshape(memory.key_BHSK.shape[0], -1, y_BTD.shape[-1])
        y_BTD = self.cross_attention(y_BTD, memory, memory_mask, rngs)
        x_BTD = self.cross_attention_norm.after(x_BTD, y_BTD.reshape(x_BTD.shape), rngs)
        # 3. Feed-forward network.
        y_BTD = self.feed_forward(self.feed_forward_norm.before(x_BTD), rngs)
        return self.feed_forward_norm.after(x_BTD, y_BTD, rngs), keys_values


class Transformer(nnx.Module):
    """The encoder-decoder of Figure 1. Token id 0 is padding, wherever it stands.

    Several sentences may be packed into a row: segment ids (1, 2, ... in order, 0 for
    padding) then keep them apart. Without segment ids, every row is one sentence.
    """

    def __init__(self, config: TransformerConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        d_model = config.d_model

        def embedding(vocab_size):
            return Embedding(vocab_size, d_model, dtype=self.dtype, rngs=rngs)

        # The three matrices of Section 3.4: source embedding, target embedding, output.
        self.target_embedding = embedding(sizes.target_vocab)
        if config.share_embeddings != "all":
            self.source_embedding = embedding(sizes.source_vocab)
        if config.share_embeddings == "none":
            self.output_embedding = embedding(sizes.target_vocab)
        if config.positions == "learned":
            init = nnx.initializers.normal(stddev=d_model**-0.5)
            shape = (config.max_positions, d_model)
            self.source_positions = nnx.Param(init(rngs.params(), shape, jnp.float32))
            self.target_positions = nnx.Param(init(rngs.params(), shape, jnp.float32))

        encoder_layers = range(config.num_encoder_layers)
        decoder_layers = range(config.num_decoder_layers)
        self.encoder_layers = nnx.List([EncoderLayer(config, rngs) for _ in encoder_layers])
        self.decoder_layers = nnx.List([DecoderLayer(config, rngs) for _ in decoder_layers])
        if config.norm == "pre":
            self.encoder_norm = layer_norm(d_model, dtype=self.dtype, rngs=rngs)
            self.decoder_norm = layer_norm(d_model, dtype=self.dtype, rngs=rngs)

    def loss(self, batch: Batch, rngs: DropoutRngs | None, label_smoothing: float) -> Loss:
        """The loss of a batch of packed rows; `rngs=None` turns dropout off."""
        y_BTD = self._decode(
            batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT, rngs
        )
        real_BT = batch.tgt_segments_BT > 0
        table_VD = self._output.table_VD[...]
        return output_loss(y_BTD, table_VD, batch.tgt_out_BT, real_BT, label_smoothing, self.dtype)

    def __call__(
        self,
        src_BS: jax.Array,
        tgt_in_BT: jax.Array,
        src_segments_BS: jax.Array | None = None,
        tgt_segments_BT: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
    ) -> jax.Array:
        """Logits [B, T, V] of the token that follows each prefix of `tgt_in`.

        `tgt_in` is the target shifted right, so that it begins with BOS. `rngs`, with a
        stream named dropout, turns dropout on.
        """
        y_BTD = self._decode(src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs)
        return self._output.logits(y_BTD)

    def _decode(self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs) -> jax.Array:
        """The decoder's output at all target positions at once, [B, T, D]."""
        memory_BSD = self.encode(src_BS, src_segments_BS, rngs)
        src_segments_BS = _segments(src_BS, src_segments_BS)
        tgt_segments_BT = _segments(tgt_in_BT, tgt_segments_BT)
        self_mask = Mask(tgt_segments_BT, tgt_segments_BT, jnp.arange(tgt_in_BT.shape[1]))
        memory_mask = Mask(tgt_segments_BT, src_segments_BS)

        y_BTD = self._embed_target(tgt_in_BT, segment_positions(tgt_segments_BT), rngs)
        for layer in self.decoder_layers:
            memory = layer.cross_attention.keys_values(memory_BSD)
            y_BTD, _ = layer(y_BTD, memory, self_mask, memory_mask, rngs)
        return self._normalize(y_BTD)

    def encode(
        self,
        src_BS: jax.Array,
        src_segments_BS: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
    ) -> jax.Array:
        """The memory: the encoder's output, [B, S, D]."""
        src_segments_BS = _segments(src_BS, src_segments_BS)
        mask = Mask(src_segments_BS, src_segments_BS)
        x_BSD = self._embed_source(src_BS, segment_positions(src_segments_BS), rngs)
        for layer in self.encoder_layers:
            x_BSD = layer(x_BSD, mask, rngs)
        return self.encoder_norm(x_BSD) if self.config.norm == "pre" else x_BSD

    def init_cache(
        self, memory_BSD: jax.Array, src_BS: jax.Array, num_hypotheses: int, max_length: int
    ) -> Cache:
        """An empty cache for `max_length` tokens of `num_hypotheses` (M) per sentence.

        The keys and values of the memory are computed here, once a sentence.
        """
        layers = self.decoder_layers
        memory = [layer.cross_attention.keys_values(memory_BSD) for layer in layers]

        def empty(x_BHSK: jax.Array) -> jax.Array:
            rows, heads, _, size = x_BHSK.shape
            return jnp.zeros((rows * num_hypotheses, heads, max_length, size), x_BHSK.dtype)

        return {
            "step": jnp.zeros((), jnp.int32),
            "sentence": {"memory": memory, "segments": _segments(src_BS, None)},
            "hypothesis": jax.tree.map(empty, memory),
        }

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Logits [N, V] of the token after `tokens_N`, the newest of each hypothesis."""
        step = cache["step"]
        max_length = jax.tree.leaves(cache["hypothesis"])[0].shape[2]
        one_11 = jnp.ones((1, 1), jnp.int32)
        self_mask = Mask(one_11, jnp.ones((1, max_length), jnp.int32), step[None])
        memory_mask = Mask(one_11, cache["sentence"]["segments"])

        y_N1D = self._embed_target(tokens_N[:, None], step[None, None], None)
        hypothesis = []
        for layer, memory, earlier in zip(
            self.decoder_layers, cache["sentence"]["memory"], cache["hypothesis"], strict=True
        ):
            y_N1D, extended = layer(y_N1D, memory, self_mask, memory_mask, cache=earlier, step=step)
            hypothesis.append(extended)
        cache = {**cache, "step": step + 1, "hypothesis": hypothesis}
        return self._output.logits(self._normalize(y_N1D))[:, 0], cache

    def _embed_source(self, src_BS, positions_BS, rngs):
        shared = self.config.share_embeddings == "all"
        embedding = self.target_embedding if shared else self.source_embedding
        table = self.source_positions[...] if self.config.positions == "learned" else None
        return self._embed(embedding, table, src_BS, positions_BS, rngs)

    def _embed_target(self, tgt_BT, positions_BT, rngs):
        table = self.target_positions[...] if self.config.positions == "learned" else None
        return self._embed(self.target_embedding, table, tgt_BT, positions_BT, rngs)

    def _embed(self, embedding, position_table, tokens_BT, positions_BT, rngs):
        """Embeddings plus positional encodings, then dropout (Sections 3.4, 3.5, 5.4)."""
        if position_table is None:
            length = tokens_BT.shape[1]
            if length == 1:  # a decoding step: positions are all the same one
                encoding_BTD = sinusoidal_encoding(positions_BT[0], self.config.d_model)[None]
            else:  # no position in a row exceeds its length
                encoding_TD = sinusoidal_encoding(jnp.arange(length), self.config.d_model)
                encoding_BTD = encoding_TD[positions_BT]
        else:
            # Positions past the table share its last row, which training has seen if the table
            # is no longer than training sentences.
            encoding_BTD = position_table[jnp.minimum(positions_BT, len(position_table) - 1)]
        x_BTD = embedding.embed(tokens_BT) + encoding_BTD.astype(self.dtype)
        return dropout(x_BTD, self.config.dropout, rngs)

    def _normalize(self, y_BTD: jax.Array) -> jax.Array:
        """Pre-LN has a last normalisation of its own."""
        return self.decoder_norm(y_BTD) if self.config.norm == "pre" else y_BTD

    @property
    def _output(self) -> Embedding:
        """Its table is the matrix of the output layer."""
        shared = self.config.share_embeddings != "none"
        return self.target_embedding if shared else self.output_embedding


def _segments(tokens_BT: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
    return (tokens_BT != PAD).astype(jnp.int32) if segments_BT is None else segments_BT


def _attention(config: TransformerConfig, rngs: nnx.Rngs) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        num_heads=config.num_heads,
        d_k=config.key_size,
        d_v=config.value_size,
        dropout_rate=config.attention_dropout,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
    )


def _feed_forward(config: TransformerConfig, rngs: nnx.Rngs) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        activation=config.activation,
        dropout_rate=config.activation_dropout,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
    )


def _add_and_norm(config: TransformerConfig, rngs: nnx.Rngs) -> AddAndNorm:
    return AddAndNorm(
        config.d_model,
        norm=config.norm,
        dropout_rate=config.dropout,
        dtype=jnp.dtype(config.dtype),
        rngs=rngs,
    )


def build(config: TransformerConfig, sizes: Sizes, rngs: nnx.Rngs) -> Transformer:
    """The module; raises UserError where the config does not fit the data."""
    one_vocabulary = sizes.joint and sizes.source_vocab == sizes.target_vocab
    if config.share_embeddings == "all" and not one_vocabulary:
        raise UserError(
            "model.share_embeddings is 'all', but the source and target vocabularies differ; "
            "set it to 'decoder' or 'none', or set tokenizer.joint to True"
        )
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
    position of its own sentence, masked by causality or not.
    """
    c = config
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    # The weights that each token meets in self-attention: query and key, value and output.
    own_token = 2 * c.num_heads * (c.key_size + c.value_size) * c.d_model
    feed_forward = 2 * c.d_model * c.d_ff
    # Scores and weighted sums, for each pair of tokens.
    pair = c.num_heads * (c.key_size + c.value_size)
    encoder = s * (own_token + feed_forward) + s * s * pair
    decoder = t * (own_token + feed_forward) + t * t * pair
    # In attention over the memory, queries and outputs are of target tokens, keys and values
    # of source tokens.
    decoder += (s + t) * own_token / 2 + s * t * pair
    output = t * c.d_model * sizes.target_vocab
    return 3 * 2 * (c.num_encoder_layers * encoder + c.num_decoder_layers * decoder + output)


# What the dimensions of parameters are split over.
VOCABULARY = HEADS = D_FF = "tensor"
D_MODEL = "fsdp"

FAMILY = Family(
    config=TransformerConfig,
    build=build,
    # Vectors of size d_model are copied: they are a thousandth of the model, and each would
    # cost a round of messages.
    sharding=(
        (r"(source|target|output)_embedding/table_VD", P(VOCABULARY, D_MODEL)),
        (r"(source|target)_positions", P(None, D_MODEL)),
        (r".+/(self|cross)_attention/(query|key|value)/kernel", P(D_MODEL, HEADS)),
        (r".+/(self|cross)_attention/output/kernel", P(HEADS, D_MODEL)),
        (r".+/feed_forward/hidden/kernel", P(D_MODEL, D_FF)),
        (r".+/feed_forward/hidden/bias", P(D_FF)),
        (r".+/feed_forward/output/kernel", P(D_FF, D_MODEL)),
        (r".+/feed_forward/output/bias", P()),
        (r".+_norm/norm/(scale|bias)", P()),
        (r"(encoder|decoder)_norm/(scale|bias)", P()),
    ),
    flops=training_flops,
    packs=True,
)
