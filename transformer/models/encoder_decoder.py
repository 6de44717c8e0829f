"""What encoder-decoders have in common: embeddings, the output layer, and their checks."""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.data.vocabulary import PAD
from transformer.models.family import Sizes
from transformer.models.layers import Embedding
from transformer.system.errors import UserError

SHARE_EMBEDDINGS = ("all", "decoder", "none")
MASK_DEVIATION = 0.5  # the standard deviation of word masks at first


class EncoderDecoder(nnx.Module):
    """The three matrices of Section 3.4: source embedding, target embedding, output layer."""

    def __init__(
        self,
        d_model: int,
        sizes: Sizes,
        *,
        share: str,
        scaled: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        words: int = 1,
    ):
        """share: which of the three are one: all; decoder, the latter two; none.

        words: how many source tokens a position of the encoder holds. Its embedding is the sum of
        theirs, each times a learned mask for its place (Dehghani et al. 2019, Section 3.1).
        """
        scale = None if scaled else 1.0

        def embedding(vocab_size):
            return Embedding(vocab_size, d_model, scale=scale, dtype=dtype, rngs=rngs)

        self.words = words
        if words > 1:
            # Were they all 1, a sum would say nothing of its words' order until they have changed.
            noise_WD = jax.random.normal(rngs.params(), (words, d_model), jnp.float32)
            self.word_masks_WD = nnx.Param(1 + MASK_DEVIATION * noise_WD)
        self.target_embedding = embedding(sizes.target_vocab)
        if share != "all":
            self.source_embedding = embedding(sizes.source_vocab)
        if share == "none":
            self.output_embedding = embedding(sizes.target_vocab)

    @property
    def _source(self) -> Embedding:
        shared = not hasattr(self, "source_embedding")
        return self.target_embedding if shared else self.source_embedding

    def _embed_words(self, src_BS: jax.Array) -> jax.Array:
        """The embeddings of positions, [B, S / words, D], S rounded up."""
        x_BSD = self._source.embed(src_BS)
        if self.words == 1:
            return x_BSD
        x_BSD *= (src_BS != PAD)[..., None].astype(x_BSD.dtype)
        masks_WD = self.word_masks_WD[...].astype(x_BSD.dtype)
        return jnp.sum(_by_position(x_BSD, self.words) * masks_WD[None, None], axis=2)

    def source_segments(self, src_BS: jax.Array, segments_BS: jax.Array | None) -> jax.Array:
        """Segment ids of positions, [B, S / words]; without any, every row is one sentence."""
        segments_BS = segments_or_one(src_BS, segments_BS)
        return segments_BS if self.words == 1 else _by_position(segments_BS, self.words)[:, :, 0]

    def check_aligns_words(self) -> None:
        """Raises UserError if attention is not to single words."""
        if self.words > 1:
            raise UserError(
                f"this needs attention to each word, and model.words_per_position is {self.words}; "
                "leave out alignments and decoding.coverage_penalty, or take another model"
            )

    @property
    def _output(self) -> Embedding:
        """Its table is the matrix of the output layer."""
        shared = not hasattr(self, "output_embedding")
        return self.target_embedding if shared else self.output_embedding


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
