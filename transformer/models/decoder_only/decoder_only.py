"""The decoder-only Transformer (Liu et al. 2018, arXiv 1801.10198): T-D, and T-DMCA.

Source, separator and target are one sequence, m d y, and each token is predicted from those before
it. The separator d is BOS, which no text contains; the source's EOS is left out. The layers are
those of an encoder with causal attention. A model without a source is a language model: d y.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.batches import Batch
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.models.blocks import D_FF, D_MODEL, HEADS, maybe_remat, scale_by_beta
from transformer.models.cache import (
    CachedKeyValues,
    DecodingStep,
    decoding_step,
    empty_key_values,
    first_ancestors,
)
from transformer.models.decoder_only.decoder_only_config import DecoderOnlyConfig
from transformer.models.decoder_only.experts import Experts
from transformer.models.decoder_only.long_attention import KINDS, Rows
from transformer.models.encoder_decoder import Decoded, OwnOutput, segments_or_one
from transformer.models.family import Family, Sizes
from transformer.models.layers import AddAndNorm, FeedForward, last_norm
from transformer.models.loss import Loss, output_loss
from transformer.models.numerics import DropoutRngs, dropout
from transformer.models.positions import (
    Positions,
    of_stack,
    segment_positions,
    sinusoidal_encoding,
)
from transformer.models.transformer import FAMILY as TRANSFORMER
from transformer.system.errors import UserError


class Layer(nnx.Module):
    """Causal self-attention and feed-forward network, each in add & norm."""

    def __init__(
        self, config: DecoderOnlyConfig, number: int, rngs: nnx.Rngs, positions: Positions
    ):
        """number: the layer's number, from 1."""
        self.self_attention = KINDS[config.layers[number - 1]](config, rngs, positions)
        self.self_attention_norm = AddAndNorm(config, True)
        if number == config.expert_layer:
            self.feed_forward = Experts(config, rngs)
        else:
            self.feed_forward = FeedForward(config, rngs)
        self.feed_forward_norm = AddAndNorm(config, True)

    def forward(
        self, x_BXD: jax.Array, rows: Rows, rngs: DropoutRngs | None, return_weights: bool = False
    ) -> tuple[jax.Array, Any, jax.Array | None, jax.Array | None]:
        """Whole rows. Returns the output, the memory, the balance of experts and the weights.

        The balance is None without experts, and the weights unless they are asked for.
        """
        y_BXD = self.self_attention_norm.before(x_BXD)
        y_BXD, memory, weights_BHXX = self.self_attention.forward(y_BXD, rows, rngs, return_weights)
        x_BXD = self.self_attention_norm.after(x_BXD, y_BXD, rngs)
        y_BXD, balance_B = self.feed_forward_norm.before(x_BXD), None
        if isinstance(self.feed_forward, Experts):
            balance_B = self.feed_forward.balance(y_BXD, rows.segments_BX > 0)
        y_BXD = self.feed_forward(y_BXD, rngs)
        return self.feed_forward_norm.after(x_BXD, y_BXD, rngs), memory, balance_B, weights_BHXX

    def decode(
        self, x_BMD: jax.Array, memory: Any, earlier: CachedKeyValues, state: Any, at: DecodingStep
    ) -> tuple[jax.Array, CachedKeyValues, Any]:
        """The newest token of each hypothesis."""
        y_BMD = self.self_attention_norm.before(x_BMD)
        y_BMD, earlier, state = self.self_attention.decode(y_BMD, memory, earlier, state, at)
        x_BMD = self.self_attention_norm.after(x_BMD, y_BMD, None)
        y_BMD = self.feed_forward(self.feed_forward_norm.before(x_BMD), None)
        return self.feed_forward_norm.after(x_BMD, y_BMD, None), earlier, state


class DecoderOnly(OwnOutput):
    """A stack of layers over one sequence. Several pairs may be packed into a row."""

    attends, joins_sides = False, True

    def __init__(self, config: DecoderOnlyConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        self.config = config
        self.dtype = jnp.dtype(config.dtype)
        self.target_embedding = self._embedding(sizes.target_vocab, rngs)
        if config.share_embeddings == "none":
            self.output_embedding = self._embedding(sizes.target_vocab, rngs)
        positions = of_stack(config, True, len(config.layers), rngs)
        self.layers = nnx.List([Layer(config, i + 1, rngs, x) for i, x in enumerate(positions)])
        scale_by_beta(config, self.layers, True)
        self.decoder_norm = last_norm(config)

    def attention_maps(self, weights: list[jax.Array]) -> dict[str, list[jax.Array]]:
        return {"decoder": weights}

    def loss(self, batch: Batch, rngs: DropoutRngs | None, label_smoothing: float) -> Loss:
        """The loss of a batch of packed rows; `rngs=None` turns dropout off.

        `nll` is always that of the targets only, so it is comparable with an encoder-decoder's.
        The term `source` is the loss of the source's tokens, except the first, and of the
        separator; `balance` is that of experts, the mean over the target's tokens.
        """
        y_BSD, (y_BTD, _, terms) = self._both_sides(
            batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT, rngs
        )
        layer, real_BT = self.output_layer(), batch.tgt_segments_BT > 0
        loss = output_loss(y_BTD, layer, batch.tgt_out_BT, real_BT, label_smoothing)
        if self.config.loss_over == "all":
            labels_BS, real_BS = _next_tokens(batch.src_BS, batch.src_segments_BS)
            source = output_loss(y_BSD, layer, labels_BS, real_BS, label_smoothing)
            terms = {"source": source.loss, **terms}
        return loss._replace(loss=loss.loss + sum(terms.values()), terms=terms)

    def decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> Decoded:
        """The outputs at the target's tokens; the term `balance`.

        Each layer's weights, [B, H, S + T, S + T], are between the tokens of the joint sequence, in
        the order of `one_sequence`.
        """
        src_segments_BS = segments_or_one(src_BS, src_segments_BS)
        tgt_segments_BT = segments_or_one(tgt_in_BT, tgt_segments_BT)
        sides = src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT
        return self._both_sides(*sides, rngs, return_weights)[1]

    def _both_sides(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> tuple[jax.Array, Decoded]:
        """The outputs [B, S, D] at the source's tokens, and those at the target's."""
        S = src_BS.shape[1]
        order_BX, segments_BX = one_sequence(src_BS, src_segments_BS, tgt_segments_BT)
        tokens_BX = jnp.concatenate([src_BS, tgt_in_BT], axis=1)
        tokens_BX = jnp.take_along_axis(tokens_BX, order_BX, axis=1)
        y_BXD, _, balance_B, weights = self._forward(tokens_BX, segments_BX, rngs, return_weights)
        place_BX1 = jnp.argsort(order_BX, axis=1)[..., None]  # where each token now stands
        y_BSD, y_BTD = (
            jnp.take_along_axis(y_BXD, side, axis=1)
            for side in (place_BX1[:, :S], place_BX1[:, S:])
        )
        terms = {}
        if balance_B is not None:
            tokens_B = jnp.sum(tgt_segments_BT > 0, axis=1)
            terms["balance"] = self.config.balance_weight * jnp.sum(balance_B * tokens_B)
        return y_BSD, Decoded(y_BTD, weights, terms)

    def _forward(self, tokens_BX, segments_BX, rngs, return_weights=False):
        """The stack on whole rows: its output, the layers' memories, the balance, the weights."""
        rows, X = Rows(segments_BX, segment_positions(segments_BX)), tokens_BX.shape[1]
        x_BXD, encoding_XD = self.target_embedding.embed(tokens_BX), self.position_table(X)
        if encoding_XD is not None:
            x_BXD += encoding_XD.astype(self.dtype)[rows.positions_BX]
        x_BXD = dropout(x_BXD, self.config.dropout, rngs)
        memories, weights, balance_B = [], [], None
        for layer in self.layers:
            forward = functools.partial(
                layer.forward, rows=rows, rngs=rngs, return_weights=return_weights
            )
            run = maybe_remat(self.config, forward)
            x_BXD, memory, found_B, weights_BHXX = run(x_BXD)
            memories.append(memory)
            weights.append(weights_BHXX)
            balance_B = balance_B if found_B is None else found_B
        return self.decoder_norm(x_BXD), memories, balance_B, weights

    def encode(self, src_BS: jax.Array) -> list[Any]:
        """Prefill: reads the source in one pass. Returns the memory of each layer."""
        is_read_BS = (src_BS != PAD) & (src_BS != EOS)
        return self._forward(src_BS, is_read_BS.astype(jnp.int32), None)[1]

    def init_cache(self, memory, src_BS, num_hypotheses, max_length):
        c, B = self.config, src_BS.shape[0]
        no_key_values = CachedKeyValues(
            jnp.zeros((B, c.key_value_heads, c.key_size, 0), self.dtype),
            jnp.zeros((B, c.key_value_heads, 0, c.value_size), self.dtype),
        )
        pairs = list(zip(self.layers, memory, strict=True))
        states = [layer.self_attention.start(own, num_hypotheses) for layer, own in pairs]
        is_read_BS = (src_BS != PAD) & (src_BS != EOS)
        return {
            "step": jnp.zeros((), jnp.int32),
            "sentence": {"memory": memory, "segments": is_read_BS.astype(jnp.int32)},
            "hypothesis": (first_ancestors(B, num_hypotheses, max_length), states),
            "key_values": [
                empty_key_values(no_key_values, num_hypotheses, max_length) for _ in pairs
            ],
        }

    def decode_step(self, tokens_N, cache):
        if "attention" in cache:
            raise UserError(
                "this needs attention from the target to the source, and a decoder-only model has "
                "one for both together; leave coverage penalty and alignments out"
            )
        step, sentence = cache["step"], cache["sentence"]
        ancestors_NL, states = cache["hypothesis"]
        at = decoding_step(step, ancestors_NL, sentence["segments"], cache["key_values"][0])
        at = at._replace(before_B=jnp.sum(sentence["segments"], axis=1))

        x_BMD = self.target_embedding.embed(tokens_N.reshape(sentence["segments"].shape[0], -1))
        if self.config.positions == "sinusoidal":
            encoding_BD = sinusoidal_encoding(at.positions_BT[:, 0], self.config.d_model)
            x_BMD += encoding_BD.astype(self.dtype)[:, None]
        key_values, followers = [], []
        layers = zip(self.layers, sentence["memory"], cache["key_values"], states, strict=True)
        for layer, memory, earlier, state in layers:
            x_BMD, earlier, state = layer.decode(x_BMD, memory, earlier, state, at)
            key_values.append(earlier)
            followers.append(state)
        hypothesis = at.ancestors_NL, followers
        cache = {**cache, "step": step + 1, "hypothesis": hypothesis, "key_values": key_values}
        y_N1D = self.decoder_norm(x_BMD).reshape(tokens_N.shape[0], 1, -1)
        return self.logits_of(y_N1D)[:, 0], cache


def one_sequence(
    src_BS: jax.Array, src_segments_BS: jax.Array, tgt_segments_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The order in which both sides' tokens, side by side, become m d y m d y ..., [B, S + T].

    EOS and padding of the source and padding of the target come last. Also returns the segments in
    this order; those that come last have 0.
    """
    is_read_BS = (src_segments_BS > 0) & (src_BS != EOS) & (src_BS != PAD)
    segments_BX = jnp.concatenate(
        [jnp.where(is_read_BS, src_segments_BS, 0), tgt_segments_BT], axis=1
    )
    is_target_X = jnp.arange(segments_BX.shape[1]) >= src_BS.shape[1]
    last = np.iinfo(np.int32).max
    rank_BX = jnp.where(segments_BX > 0, 2 * segments_BX + is_target_X[None], last)
    order_BX = jnp.argsort(rank_BX, axis=1, stable=True)
    return order_BX, jnp.take_along_axis(segments_BX, order_BX, axis=1)


def _next_tokens(src_BS: jax.Array, segments_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token after each source token in m d y, and whether there is one to predict."""
    after_BS, same_BS = (jnp.pad(x, ((0, 0), (0, 1)))[:, 1:] for x in (src_BS, segments_BS))
    is_read_BS = (segments_BS > 0) & (src_BS != EOS) & (src_BS != PAD)
    is_followed_BS = is_read_BS & (same_BS == segments_BS) & (after_BS != PAD)
    return jnp.where(after_BS == EOS, BOS, after_BS), is_followed_BS


def build(config: DecoderOnlyConfig, sizes: Sizes, rngs: nnx.Rngs) -> DecoderOnly:
    """The module; raises UserError where the config does not fit the data."""
    if not sizes.joint:
        raise UserError(
            "model.family is 'decoder_only', whose one sequence has one vocabulary; set "
            "tokenizer.joint to True"
        )
    return DecoderOnly(config, sizes, rngs=rngs)


def training_flops(
    config: DecoderOnlyConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs, counted as for the Transformer: full attention counts every pair of a sequence.

    Local attention counts for each token the tokens of the blocks that it sees, memory-compressed
    attention 1 / compression of all pairs.
    """
    c = config
    t = target_lengths.astype(np.float64)
    x = source_lengths - 1 + t  # without the source's EOS
    own_token, pair = c.query_weights + c.key_weights, c.attention_pair
    seen = (1 + (c.local_attention == "tensor2tensor")) * c.block_length
    convolution = c.num_heads**2 * (c.key_size**2 + c.value_size**2)
    if c.compressed_attention == "tensor2tensor":
        convolution = c.d_model**2 + c.key_weights / c.compression
    by_kind = {
        "F": x * x * c.self_attention_pair,
        "L": x * np.minimum(x, seen) * pair,
        "M": x * (x / c.compression) * pair + x * convolution,
    }
    total = sum(x * own_token + by_kind[kind] for kind in c.layers)
    total += x * c.feed_forward_weights * (len(c.layers) - bool(c.expert_layer))
    if c.expert_layer:
        total += x * c.d_model * (c.num_experts + 2 * c.experts_per_token * c.expert_d_ff)
    predicted = x if c.loss_over == "all" else t
    return 3 * 2 * (total + predicted * c.d_model * sizes.target_vocab)


FAMILY = Family(
    config=DecoderOnlyConfig,
    build=build,
    sharding=(
        *TRANSFORMER.sharding,
        (r".+/self_attention/compress(_key|_value)?/kernel", P(None, HEADS)),
        (r".+/self_attention/compress(_key|_value)?/bias", P(HEADS)),
        (r".+/feed_forward/router/kernel", P(D_MODEL, None)),
        (r".+/feed_forward/hidden_EDF", P(None, D_MODEL, D_FF)),
        (r".+/feed_forward/hidden_bias_EF", P(None, D_FF)),
        (r".+/feed_forward/output_EFD", P(None, D_FF, D_MODEL)),
        (r".+/feed_forward/output_bias_ED", P()),
    ),
    flops=training_flops,
    packs=True,
)
