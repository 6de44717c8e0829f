"""The trunk of encoder-decoders: loss, logits, and the three matrices of Section 3.4."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.data.batches import Batch
from transformer.data.vocabulary import PAD
from transformer.models.attention import Mask
from transformer.models.family import Sizes
from transformer.models.layers import Embedding
from transformer.models.loss import Loss, OutputLayer, logits_of, output_loss
from transformer.models.numerics import DropoutRngs
from transformer.models.packed_attention import spans_of
from transformer.models.positions import ENCODINGS
from transformer.system.errors import UserError

Cache = dict[str, Any]
SHARE_EMBEDDINGS = ("all", "decoder", "none")
MASK_DEVIATION = 0.5  # the initial standard deviation of word masks


class Decoded(NamedTuple):
    """The decoder's outputs at all target positions at once.

    y_BTD: the input of the output layer.
    weights: the weights of attention, in the family's own form.
    terms: weighted terms of the loss besides the cross-entropy, by name.
    """

    y_BTD: jax.Array
    weights: Any
    terms: dict[str, jax.Array] = {}


class AttentionWeights(NamedTuple):
    """The weights of each layer and head, before dropout, in at least float32.

    The weights of a query add up to 1. They are 0 for padding, for other sentences of the same row
    and for later tokens. A query that may attend to nothing, such as padding, has only zeros.
    """

    encoder: list[jax.Array]  # self-attention, of each layer [B, H, S, S]
    decoder: list[jax.Array]  # self-attention, [B, H, T, T]
    cross: list[jax.Array]  # from target to source, [B, H, T, S]


class EncoderDecoder(nnx.Module):
    """A model of p(target | source). A family defines how it decodes and its output layer.

    Token id 0 is padding, wherever it stands. Several pairs may be packed into a row: segment ids
    (1, 2, ... in order, 0 for padding) keep them apart. Without segment ids, every row is one pair.

    layer_name: the name of a layer. words: source tokens of each position of the encoder.
    attends: whether a target attends to its source. joins_sides: whether both are one sequence.
    halts: whether `num_steps` varies by token.
    """

    layer_name, words = "layer", 1
    attends, joins_sides, halts = True, False, False

    def attention_maps(self, weights: Any) -> dict[str, list[jax.Array]]:
        """The weights that `__call__` returns, each [B, H, queries, keys], by field of
        `AttentionWeights`; for each layer."""
        return weights._asdict()

    def position_table(self, length: int) -> jax.Array | None:
        """The vectors [P, D] that embeddings of source tokens get for the first positions."""

    def decode(
        self,
        src_BS: jax.Array,
        tgt_in_BT: jax.Array,
        src_segments_BS: jax.Array | None,
        tgt_segments_BT: jax.Array | None,
        rngs: DropoutRngs | None,
        return_weights: bool = False,
    ) -> Decoded:
        raise NotImplementedError

    def encode(
        self,
        src_BS: jax.Array,
        src_segments_BS: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
    ) -> Any:
        """The memory, which the decoder attends to."""
        raise NotImplementedError

    def init_cache(
        self, memory: Any, src_BS: jax.Array, num_hypotheses: int, max_length: int
    ) -> Cache:
        """An empty cache for `max_length` tokens of `num_hypotheses` (M) per sentence.

        What depends on the memory only is computed here, once per sentence.
        """
        raise NotImplementedError

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Logits [N, V] of the token after `tokens_N`, the newest of each hypothesis."""
        raise NotImplementedError

    def output_layer(self) -> OutputLayer:
        raise NotImplementedError

    def logits_of(self, y_BTD: jax.Array) -> jax.Array:
        return logits_of(y_BTD, self.output_layer())

    def loss(self, batch: Batch, rngs: DropoutRngs | None, label_smoothing: float) -> Loss:
        """The loss of a batch of packed rows; `rngs=None` turns dropout off."""
        sides = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
        y_BTD, _, terms = self.decode(*sides, rngs)
        real_BT = batch.tgt_segments_BT > 0
        loss = output_loss(y_BTD, self.output_layer(), batch.tgt_out_BT, real_BT, label_smoothing)
        return loss._replace(loss=sum(terms.values(), loss.loss), terms=terms)

    def __call__(
        self,
        src_BS: jax.Array,
        tgt_in_BT: jax.Array,
        src_segments_BS: jax.Array | None = None,
        tgt_segments_BT: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
    ) -> jax.Array | tuple[jax.Array, Any]:
        """Logits [B, T, V] of the token that follows each prefix of `tgt_in`.

        `tgt_in` is the target shifted right, so that it begins with BOS. `rngs`, with a
        stream named dropout, turns dropout on.

        return_weights: also return the weights of attention, in the family's own form.
        """
        sides = src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT
        y_BTD, weights, _ = self.decode(*sides, rngs, return_weights)
        logits_BTV = self.logits_of(y_BTD)
        return (logits_BTV, weights) if return_weights else logits_BTV


class OwnOutput(EncoderDecoder):
    """A model whose output layer is the target's embedding, or an embedding of its own."""

    output_bias_V: nnx.Param | None = None

    def position_table(self, length: int) -> jax.Array | None:
        encode = ENCODINGS.get(self.config.positions)
        return encode and encode(jnp.arange(length), self.config.d_model)

    def output_layer(self) -> OutputLayer:
        bias_V = None if self.output_bias_V is None else self.output_bias_V[...]
        blocked = self.config.uses("blocked_loss")
        return OutputLayer(self._scaled(self._output.table_VD[...]), bias_V, self.dtype, blocked)

    def logits_of(self, y_BTD: jax.Array) -> jax.Array:
        logits_BTV = self._output.logits(self._scaled(y_BTD))
        if self.output_bias_V is not None:
            logits_BTV += self.output_bias_V[...][None, None]
        return logits_BTV

    def _embedding(self, vocab_size: int, rngs: nnx.Rngs) -> Embedding:
        scale, d_model = None if self.config.scale_embeddings else 1.0, self.config.d_model
        return Embedding(vocab_size, d_model, scale=scale, dtype=self.dtype, rngs=rngs)

    def _scaled(self, factor: jax.Array) -> jax.Array:
        """One factor of the logits."""
        return factor * self.config.d_model**-0.5 if self.config.scale_outputs else factor

    @property
    def _output(self) -> Embedding:
        """The embedding whose table is the matrix of the output layer."""
        is_shared = self.config.share_embeddings != "none"
        return self.target_embedding if is_shared else self.output_embedding


class SharedEmbeddings(OwnOutput):
    """The three matrices of Section 3.4: source embedding, target embedding, output layer."""

    def __init__(self, config: Any, sizes: Sizes, *, rngs: nnx.Rngs):
        """config.share_embeddings: which of the three are one: all; decoder, the latter two; none.

        config.words_per_position: source tokens per position of the encoder. A position's embedding
        is the sum of theirs, each times a learned mask for its place (Dehghani et al. 2019, Section
        3.1).
        """
        self.config, self.dtype = config, jnp.dtype(config.dtype)
        share, words = config.share_embeddings, config.words_per_position
        self.words = words
        self.row_segments = sizes.row_segments if config.uses("cudnn_packed") else 0
        if words > 1:
            # If all masks began at 1, sums would ignore the order of words until training changed
            # the masks.
            noise_WD = jax.random.normal(rngs.params(), (words, config.d_model), jnp.float32)
            self.word_masks_WD = nnx.Param(1 + MASK_DEVIATION * noise_WD)
        self.target_embedding = self._embedding(sizes.target_vocab, rngs)
        if share != "all":
            self.source_embedding = self._embedding(sizes.source_vocab, rngs)
        if share == "none":
            self.output_embedding = self._embedding(sizes.target_vocab, rngs)

    def _embed_words(self, src_BS: jax.Array) -> jax.Array:
        """The embeddings of positions, [B, S / words, D], S rounded up."""
        is_shared = self.config.share_embeddings == "all"
        source = self.target_embedding if is_shared else self.source_embedding
        x_BSD = source.embed(src_BS)
        if self.words == 1:
            return x_BSD
        x_BSD *= (src_BS != PAD)[..., None].astype(x_BSD.dtype)
        masks_WD = self.word_masks_WD[...].astype(x_BSD.dtype)
        return jnp.sum(_by_position(x_BSD, self.words) * masks_WD[None, None], axis=2)

    def source_segments(self, src_BS: jax.Array, segments_BS: jax.Array | None) -> jax.Array:
        """Segment ids of positions, [B, S / words]; without any, every row is one sentence."""
        segments_BS = segments_or_one(src_BS, segments_BS)
        return segments_BS if self.words == 1 else _by_position(segments_BS, self.words)[:, :, 0]

    def mask(
        self,
        query_segments_BT: jax.Array,
        key_segments_BS: jax.Array,
        rngs: DropoutRngs | None,
        positions_T: jax.Array | None = None,
    ) -> Mask:
        """rngs: of training, whose rows have no more segments than `row_segments`; others may."""
        mask = Mask(query_segments_BT, key_segments_BS, positions_T)
        if rngs is None or not self.row_segments:
            return mask
        return mask._replace(spans=spans_of(*mask[:2], self.row_segments))

    def check_aligns_words(self) -> None:
        """Raises UserError unless attention is to single words."""
        if self.words > 1:
            raise UserError(
                f"this needs attention to each word, and model.words_per_position is {self.words}; "
                "leave out alignments and decoding.coverage_penalty, or take another model"
            )


def check_shared(share_embeddings: str, sizes: Sizes) -> None:
    """Raises UserError if one matrix should serve two vocabularies."""
    if share_embeddings == "all" and not sizes.joint:
        raise UserError(
            "model.share_embeddings is 'all', but the source and target vocabularies differ; "
            "set it to 'decoder' or 'none', or set tokenizer.joint to True"
        )


def _by_position(x: jax.Array, words: int) -> jax.Array:
    """[B, S, ...] as [B, S / words, words, ...]; padding fills the last position."""
    B, S, *rest = x.shape
    missing = -S % words
    x = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * len(rest)])
    return x.reshape(B, (S + missing) // words, words, *rest)


def segments_or_one(tokens_BT: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
    """Segment ids [B, T]; without any, every row is one sentence."""
    return (tokens_BT != PAD).astype(jnp.int32) if segments_BT is None else segments_BT
