"""What encoder-decoders have in common: embeddings, the output layer, and their checks."""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.data.vocabulary import PAD
from transformer.models.family import Sizes
from transformer.models.layers import Embedding
from transformer.system.errors import UserError

SHARE_EMBEDDINGS = ("all", "decoder", "none")


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
    ):
        """share: which of the three are one: all; decoder, the latter two; none."""
        scale = None if scaled else 1.0

        def embedding(vocab_size):
            return Embedding(vocab_size, d_model, scale=scale, dtype=dtype, rngs=rngs)

        self.target_embedding = embedding(sizes.target_vocab)
        if share != "all":
            self.source_embedding = embedding(sizes.source_vocab)
        if share == "none":
            self.output_embedding = embedding(sizes.target_vocab)

    @property
    def _source(self) -> Embedding:
        shared = not hasattr(self, "source_embedding")
        return self.target_embedding if shared else self.source_embedding

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


def segments_or_one(tokens_BT: jax.Array, segments_BT: jax.Array | None) -> jax.Array:
    """Segment ids [B, T]; without any, every row is one sentence."""
    return (tokens_BT != PAD).astype(jnp.int32) if segments_BT is None else segments_BT
