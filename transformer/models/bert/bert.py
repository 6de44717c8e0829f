"""BERT (Devlin et al. 2019, arXiv 1810.04805): an encoder without a decoder, and its heads.

Two things are called segments. Segment ids, as everywhere in this project, tell apart the sequences
packed into one row; attention keeps them apart. Token types, which the paper calls segments, tell
sentence A (0) from sentence B (1) inside one sequence; they are embedded.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.sequences import Labelled, Masked
from transformer.models.attention import Mask
from transformer.models.blocks import (
    D_MODEL,
    LAYER_SHARDING,
    VOCABULARY,
    EncoderLayer,
    maybe_remat,
    scale_by_beta,
)
from transformer.models.encoder_decoder import segments_or_one
from transformer.models.family import Family, Sizes
from transformer.models.layers import (
    ACTIVATIONS,
    MOST_LAYERS,
    Embedding,
    LayerConfig,
    Linear,
    Normalization,
    last_norm,
)
from transformer.models.loss import Loss, OutputLayer, cross_entropy, output_loss
from transformer.models.numerics import DropoutRngs, at_least_float32, dropout
from transformer.models.positions import of_stack, segment_positions
from transformer.system.errors import UserError, check_choice, check_range, setting

# Heads after the encoder. pre_training: masked_lm, and a pooler with the next-sentence head.
HEADS = ("none", "masked_lm", "pre_training", "classification")
# Parameters of heads. A run may begin with the parameters of a model that has other heads.
HEAD_PARAMETERS = ("pooler", "masked_lm", "next_sentence", "classifier")
INITIAL_STDDEV = 0.02  # of a normal distribution cut at two deviations


@dataclasses.dataclass(frozen=True)
class BertConfig(LayerConfig):
    """Sizes, and the head after the encoder; see configs/bert_base.py."""

    num_layers: int
    max_positions: int
    num_token_types: int
    head: str = setting(architecture=False)
    positions: str = setting(default="learned")  # earlier commits lack it

    position_kinds = tuple(kind for kind in LayerConfig.position_kinds if kind != "sinusoidal")

    def __post_init__(self):
        super().__post_init__()
        check_range(self, "model", "max_positions num_token_types", 1)
        check_range(self, "model", "num_layers", 1, MOST_LAYERS + 1)
        check_choice(self, "model", "head", HEADS)

    @property
    def depths(self) -> tuple[int, int]:
        return self.num_layers, 0


class MaskedLMHead(nnx.Module):
    """A hidden layer, and logits by the matrix of the embedding, with a bias."""

    def __init__(self, config: BertConfig, vocab_size: int, rngs: nnx.Rngs):
        d_model, dtype = config.d_model, jnp.dtype(config.dtype)
        self.hidden = Linear(d_model, d_model, use_bias=True, dtype=dtype, rngs=rngs)
        self.norm = Normalization(config)
        self.bias_V = nnx.Param(jnp.zeros(vocab_size, jnp.float32))
        self.activation = config.activation

    def __call__(self, x_BPD: jax.Array) -> jax.Array:
        return self.norm(ACTIVATIONS[self.activation](self.hidden(x_BPD)))


class Bert(nnx.Module):
    """The encoder, and the heads that the config names. Token id 0 is padding."""

    def __init__(self, config: BertConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        d_model = config.d_model

        def linear(size):
            return Linear(d_model, size, use_bias=True, dtype=self.dtype, rngs=rngs)

        self.embedding = Embedding(
            sizes.source_vocab, d_model, scale=1.0, dtype=self.dtype, rngs=rngs
        )
        if config.positions == "learned":
            self.positions = nnx.Param(jnp.zeros((config.max_positions, d_model), jnp.float32))
        self.token_types = nnx.Param(jnp.zeros((config.num_token_types, d_model), jnp.float32))
        self.embedding_norm = Normalization(config)
        positions = of_stack(config, False, config.num_layers, rngs)
        self.encoder_layers = nnx.List([EncoderLayer(config, rngs, x) for x in positions])
        self.encoder_norm = last_norm(config)
        if config.head != "masked_lm":
            self.pooler = linear(d_model)
        if config.head in ("masked_lm", "pre_training"):
            self.masked_lm = MaskedLMHead(config, sizes.source_vocab, rngs)
        if config.head == "pre_training":
            self.next_sentence = linear(2)
        if config.head == "classification":
            self.classifier = linear(sizes.target_vocab)
        _initialize(self, rngs)
        scale_by_beta(config, self.encoder_layers, False)

    def position_table(self, length: int) -> jax.Array | None:
        """The vectors [P, D] of the first positions."""
        return self.positions[...][:length] if self.config.positions == "learned" else None

    def encode(
        self,
        tokens_BS: jax.Array,
        types_BS: jax.Array,
        segments_BS: jax.Array | None = None,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, list[jax.Array | None]]:
        """The last hidden states [B, S, D], and the attention weights of each layer.

        segments_BS: see the top of this file; without any, every row is one sequence. A position
        counts the real tokens before it in its sequence.
        return_weights: if False, the weights, [B, H, S, S], are None.
        """
        segments_BS = segments_or_one(tokens_BS, segments_BS)
        x_BSD = self.embedding.embed(tokens_BS)
        if self.config.positions == "learned":
            places_BS = segment_positions(segments_BS)
            x_BSD += self.positions[...][places_BS].astype(self.dtype)
        x_BSD += self.token_types[...][types_BS].astype(self.dtype)
        x_BSD = dropout(self.embedding_norm(x_BSD), self.config.dropout, rngs)
        mask = Mask(segments_BS, segments_BS)
        weights = []
        for layer in self.encoder_layers:
            run = functools.partial(layer, mask=mask, rngs=rngs, return_weights=return_weights)
            x_BSD, weights_BHSS = maybe_remat(self.config, run)(x_BSD)
            weights.append(weights_BHSS)
        return self.encoder_norm(x_BSD), weights

    def pool(self, x_BSD: jax.Array, firsts_BC: jax.Array) -> jax.Array:
        """The pooled vector of each sequence, [B, C, D]: of its first token, [CLS]."""
        return jnp.tanh(self.pooler(_gather(x_BSD, firsts_BC)))

    def masked_lm_logits(self, x_BPD: jax.Array) -> jax.Array:
        """Logits [B, P, V] of the token at each of the given positions."""
        return self.embedding.logits(self.masked_lm(x_BPD)) + self.masked_lm.bias_V[...][None, None]

    def next_sentence_logits(self, pooled_BCD: jax.Array) -> jax.Array:
        """Logits [B, C, 2]: 0, sentence B follows A; 1, it is from elsewhere."""
        return self.next_sentence(pooled_BCD).astype(at_least_float32(self.dtype))

    def classify(self, batch: Labelled, rngs: DropoutRngs | None = None) -> jax.Array:
        """Logits [B, C, number of classes] of each sequence; of a regression, [B, C, 1]."""
        x_BSD, _ = self.encode(batch.tokens_BS, batch.types_BS, batch.segments_BS, rngs)
        pooled_BCD = dropout(self.pool(x_BSD, batch.firsts_BC), self.config.dropout, rngs)
        return self.classifier(pooled_BCD).astype(at_least_float32(self.dtype))

    def predict(self, batch: Masked) -> tuple[jax.Array, jax.Array | None]:
        """Logits [B, P, V] of the masked tokens, and [B, C, 2] of the next-sentence head."""
        x_BSD, _ = self.encode(batch.tokens_BS, batch.types_BS, batch.segments_BS)
        logits_BPV = self.masked_lm_logits(_gather(x_BSD, batch.masked_BP))
        if self.config.head != "pre_training":
            return logits_BPV, None
        return logits_BPV, self.next_sentence_logits(self.pool(x_BSD, batch.firsts_BC))

    def loss(
        self, batch: Masked | Labelled, rngs: DropoutRngs | None, label_smoothing: float
    ) -> Loss:
        """The loss of masked tokens and next sentences, or of classes; `rngs=None`: no dropout."""
        if self.config.head == "classification":
            return self.class_loss(self.classify(batch, rngs), batch, label_smoothing)
        x_BSD, _ = self.encode(batch.tokens_BS, batch.types_BS, batch.segments_BS, rngs)
        layer = OutputLayer(
            self.embedding.table_VD[...],
            self.masked_lm.bias_V[...],
            self.dtype,
            self.config.uses("blocked_loss"),
        )
        y_BPD, is_real_BP = self.masked_lm(_gather(x_BSD, batch.masked_BP)), batch.labels_BP > 0
        loss = output_loss(y_BPD, layer, batch.labels_BP, is_real_BP, label_smoothing)
        if self.config.head == "masked_lm":
            return loss
        logits_BC2 = self.next_sentence_logits(self.pool(x_BSD, batch.firsts_BC))
        is_real_BC = batch.is_random_BC >= 0
        next_sentence = cross_entropy(
            logits_BC2, jnp.maximum(batch.is_random_BC, 0), is_real_BC, 0.0
        )
        # The sum of two means: see `Masked`. Rows of one update have one weight.
        term = next_sentence.loss * jnp.max(batch.weight_B)
        return loss._replace(loss=loss.loss + term, terms={"next_sentence": term})

    def class_loss(self, logits_BCX: jax.Array, batch: Labelled, label_smoothing: float) -> Loss:
        """Cross-entropy of classes; for a regression, squared errors."""
        is_real_BC = batch.is_real_BC > 0
        if logits_BCX.shape[-1] > 1:
            labels_BC = batch.labels_BC.astype(jnp.int32)
            return cross_entropy(logits_BCX, labels_BC, is_real_BC, label_smoothing)
        squares = jnp.sum((logits_BCX[..., 0] - batch.labels_BC) ** 2, where=is_real_BC)
        return Loss(squares, squares, jnp.sum(is_real_BC, dtype=jnp.int32))


def _gather(x_BSD: jax.Array, places_BP: jax.Array) -> jax.Array:
    """The vectors at the given places of each row, [B, P, D]."""
    return jnp.take_along_axis(x_BSD, places_BP[..., None], axis=1)


def _initialize(module: nnx.Module, rngs: nnx.Rngs) -> None:
    """Draws all matrices and tables from BERT's distribution; vectors stay as they are."""
    draw = nnx.initializers.truncated_normal(INITIAL_STDDEV)
    state = nnx.state(module, nnx.Param)
    drawn = jax.tree.map(
        lambda x: draw(rngs.params(), x.shape, x.dtype) if x.ndim > 1 else x, state
    )
    nnx.update(module, drawn)


def build(config: BertConfig, sizes: Sizes, rngs: nnx.Rngs) -> Bert:
    """The module; raises UserError where the config does not fit the data."""
    longest = sizes.max_source_length
    if config.positions == "learned" and longest > config.max_positions:
        raise UserError(
            f"data.max_length is {longest}, but model.max_positions is {config.max_positions}; "
            "lower data.max_length, or train a model with more positions"
        )
    return Bert(config, sizes, rngs=rngs)


def training_flops(
    config: BertConfig, sizes: Sizes, lengths: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """FLOPs to train on each sequence once: matrix products, forward and (twice that) backward.

    lengths: tokens of each sequence. predictions: how many of them go through the vocabulary.
    """
    c = config
    s, p = lengths.astype(np.float64), predictions.astype(np.float64)
    each = c.query_weights + c.key_weights + c.feed_forward_weights
    layer = s * each + s * s * c.self_attention_pair
    heads = 0.0 if c.head == "masked_lm" else c.d_model**2
    if c.head in ("masked_lm", "pre_training"):
        heads = heads + p * (c.d_model**2 + c.d_model * sizes.source_vocab)
    if c.head == "pre_training":
        heads = heads + 2 * c.d_model
    if c.head == "classification":
        heads = heads + c.d_model * sizes.target_vocab
    return 3 * 2 * (c.num_layers * layer + heads)


FAMILY = Family(
    config=BertConfig,
    build=build,
    sharding=(
        (r"embedding/table_VD", P(VOCABULARY, D_MODEL)),
        (r"positions|token_types", P(None, D_MODEL)),
        (r"(embedding|encoder)_norm/(scale|bias)", P()),
        *LAYER_SHARDING,
        # The heads' layers are a hundredth of the model.
        (r"(pooler|masked_lm/hidden|next_sentence|classifier)/kernel", P(D_MODEL, None)),
        (r"(pooler|masked_lm/hidden|next_sentence|classifier)/bias", P()),
        (r"masked_lm/norm/(scale|bias)", P()),
        (r"masked_lm/bias_V", P(VOCABULARY)),
    ),
    flops=training_flops,
    packs=True,
    heads=HEAD_PARAMETERS,
    class_axes=((r"classifier/kernel", 1), (r"classifier/bias", 0)),
)
