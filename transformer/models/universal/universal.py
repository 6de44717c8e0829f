"""The Universal Transformer (Dehghani et al. 2019, arXiv 1807.03819): one layer, many steps.

Encoder and decoder each have one layer. It transforms all positions again and again: for a fixed
number of steps or, with adaptive computation time, until a position halts. Each step begins by
adding the coordinates of position and step. The steps and halting are in universal_steps.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.data.vocabulary import UNK
from transformer.models.cache import (
    attention_to_see,
    decoding_step,
    empty_key_values,
    first_ancestors,
)
from transformer.models.encoder_decoder import (
    AttentionWeights,
    Decoded,
    SharedEmbeddings,
    check_shared,
    segments_or_one,
)
from transformer.models.family import Family, Sizes
from transformer.models.numerics import dropout, row_keys
from transformer.models.positions import (
    positions_from_the_end,
    segment_positions,
    sinusoidal_encoding,
    split_segments,
)
from transformer.models.transformer import FAMILY as TRANSFORMER
from transformer.models.transformer import training_flops as transformer_flops
from transformer.models.universal.halting import Halting
from transformer.models.universal.separable import SeparableTransition
from transformer.models.universal.universal_steps import Recurrence, UniversalConfig
from transformer.system.errors import check_range


class Spacing(NamedTuple):
    """The numbers of a row's positions: start, start + stride, start + 2 * stride, ..."""

    start_B1: jax.Array | int
    stride_B1: jax.Array | int


class Universal(SharedEmbeddings):
    """The encoder-decoder of Figure 2."""

    layer_name = "step"

    def __init__(self, config: UniversalConfig, sizes: Sizes, *, rngs: nnx.Rngs):
        super().__init__(config, sizes, rngs=rngs)
        self.encoder = Recurrence(config, config.encoder_steps, False, rngs)
        self.decoder = Recurrence(config, config.decoder_steps, True, rngs)
        self.halts = config.halting != "none"

    def decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> Decoded:
        """The decoder of Figure 2 at all target positions at once, with the weights of each step.

        With halting, the term `ponder` is the ponder cost of all source and target tokens, times
        its weight. Padding costs nothing.
        """
        sides = src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT
        y_BTD, halting, weights = self._decode(*sides, rngs, return_weights)
        if not self.halts:
            return Decoded(y_BTD, weights)
        real_BS = self.source_segments(src_BS, src_segments_BS) > 0
        real_BT = segments_or_one(tgt_in_BT, tgt_segments_BT) > 0
        cost = sum(
            jnp.sum(side.num_steps_BT + side.remainder_BT, where=is_real)
            for side, is_real in zip(halting, (real_BS, real_BT), strict=True)
        )
        return Decoded(y_BTD, weights, {"ponder": self.config.ponder_weight * cost})

    def num_steps(self, src_BS: jax.Array, tgt_in_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The number of steps of each position, [B, S / words] and [B, T], of a model that halts.

        Ignore padding's.
        """
        _, halting, _ = self._decode(src_BS, tgt_in_BT, None, None, None)
        return halting[0].num_steps_BT, halting[1].num_steps_BT

    def encode(self, src_BS, src_segments_BS=None, rngs=None) -> jax.Array:
        """The memory: the encoder's output, [B, S, D], or [B, S / words_per_position, D]."""
        segments_BS = self.source_segments(src_BS, src_segments_BS)
        return self._encode(src_BS, segments_BS, self._spacing(src_BS, rngs), rngs, False)[0]

    def _encode(self, src_BS, segments_BS, spacing, rngs, return_weights):
        mask = self.mask(segments_BS, segments_BS, rngs)

        def transform(x_BSD, rngs, _):
            network = self._network(self.encoder, segments_BS)
            return self.encoder.layer(x_BSD, mask, rngs, return_weights, network)

        x_BSD = dropout(self._embed_words(src_BS), self.config.dropout, rngs)
        positions_BSD = self._positions(segments_BS, spacing, src_BS)
        return self.encoder(x_BSD, positions_BSD, transform, rngs)

    def _decode(
        self, src_BS, tgt_in_BT, src_segments_BS, tgt_segments_BT, rngs, return_weights=False
    ) -> tuple[jax.Array, tuple[Halting | None, Halting | None], AttentionWeights]:
        """The decoder's output at all target positions at once, [B, T, D]."""
        src_segments_BS = self.source_segments(src_BS, src_segments_BS)
        tgt_segments_BT = segments_or_one(tgt_in_BT, tgt_segments_BT)
        spacing = self._spacing(src_BS, rngs)
        memory_BSD, of_source, encoder_weights = self._encode(
            src_BS, src_segments_BS, spacing, rngs, return_weights
        )
        layer = self.decoder.layer
        memory = layer.cross_attention.key_values(memory_BSD)  # the same at each step
        positions_T = jnp.arange(tgt_in_BT.shape[1])
        self_mask = self.mask(tgt_segments_BT, tgt_segments_BT, rngs, positions_T)
        memory_mask = self.mask(tgt_segments_BT, src_segments_BS, rngs)

        def transform(x_BTD, rngs, _):
            network = self._network(self.decoder, tgt_segments_BT)
            return layer(x_BTD, memory, self_mask, memory_mask, rngs, return_weights, network)

        y_BTD = dropout(self.target_embedding.embed(tgt_in_BT), self.config.dropout, rngs)
        positions_BTD = self._positions(tgt_segments_BT, spacing)
        y_BTD, of_target, (decoder, cross) = self.decoder(y_BTD, positions_BTD, transform, rngs)
        weights = AttentionWeights(encoder_weights, decoder, cross)
        return y_BTD, (of_source, of_target), weights

    def init_cache(self, memory_BSD, src_BS, num_hypotheses, max_length):
        """All steps share one layer, but its keys and values differ from step to step."""
        layer = self.decoder.layer
        memory = layer.cross_attention.cached_key_values(memory_BSD)
        rows = src_BS.shape[0] * num_hypotheses
        steps = range(self.config.decoder_steps)
        inputs = [None for _ in steps]  # of the convolution
        if self.config.transition == "separable_convolution":
            inputs = [layer.feed_forward.init_cache(rows) for _ in steps]
        return {
            "step": jnp.zeros((), jnp.int32),
            "sentence": {"memory": memory, "segments": self.source_segments(src_BS, None)},
            "hypothesis": (first_ancestors(src_BS.shape[0], num_hypotheses, max_length), inputs),
            "key_values": [empty_key_values(memory, num_hypotheses, max_length) for _ in steps],
        }

    def decode_step(self, tokens_N, cache):
        position, layer, sentence = cache["step"], self.decoder.layer, cache["sentence"]
        B, N = sentence["segments"].shape[0], tokens_N.shape[0]
        ancestors_NL, inputs = cache["hypothesis"]
        at = decoding_step(position, ancestors_NL, sentence["segments"], cache["key_values"][0])

        def transform(x_BMD, _, earlier):
            key_values, inputs = earlier
            x_BMD, key_values, weights_BHMS = layer.attend_step(
                x_BMD, sentence["memory"], key_values, at
            )
            # The convolution treats hypotheses as rows of one token each.
            x_N1D = x_BMD.reshape(N, 1, -1)
            y_N1D = layer.feed_forward_norm.before(x_N1D)
            if inputs is None:
                y_N1D = layer.feed_forward(y_N1D)
            else:
                y_N1D, inputs = layer.feed_forward(y_N1D, None, None, inputs)
            y_N1D = layer.feed_forward_norm.after(x_N1D, y_N1D, None)
            return y_N1D.reshape(x_BMD.shape), (key_values, inputs, weights_BHMS)

        first = position[None] + self.config.first_position
        encoding_1X = sinusoidal_encoding(first, self.config.channels_of_a_count)
        times = self.config.d_model // self.config.channels_of_a_count
        positions_11D = jnp.tile(encoding_1X, times)[None].astype(self.dtype)
        if self.config.positions != "sinusoidal":
            positions_11D = jnp.zeros_like(positions_11D)
        carry = self.decoder.begin(self.target_embedding.embed(tokens_N.reshape(B, -1)))
        extended = []
        for number, key_values in enumerate(cache["key_values"]):
            earlier = key_values, inputs[number]
            carry, result = self.decoder.step(
                jnp.int32(number), carry, positions_11D, transform, None, earlier
            )
            extended.append(result)
        key_values, inputs, weights = zip(*extended, strict=True)
        cache = {
            **cache,
            "step": position + 1,
            "hypothesis": (at.ancestors_NL, list(inputs)),
            "key_values": list(key_values),
        }
        if "attention" in cache:
            self.check_aligns_words()
            cache["attention"] = attention_to_see(list(weights))
        return self.logits_of(self.decoder.finish(carry).reshape(N, 1, -1))[:, 0], cache

    def _network(self, recurrence, segments_BT):
        """The call of a convolution, which sees no other sentence of a row."""
        if self.config.transition == "feed_forward":
            return None
        return lambda x_BTD, rngs: recurrence.layer.feed_forward(x_BTD, segments_BT, rngs)[0]

    def _spacing(self, src_BS, rngs) -> Spacing:
        """The spacing of each row's positions, the same on both sides."""
        c = self.config
        if rngs is None or (not c.random_start and c.random_stride == 1):
            return Spacing(c.first_position, 1)

        def draw(key):
            of_start, of_stride = jax.random.split(key)
            later_1 = _log_uniform(of_start, c.random_start + 1) - 1
            return Spacing(c.first_position + later_1, _log_uniform(of_stride, c.random_stride))

        return jax.vmap(draw)(row_keys(rngs, len(src_BS)))

    def _positions(
        self, segments_BT: jax.Array, spacing: Spacing, src_BT: jax.Array | None = None
    ) -> jax.Array:
        """The coordinates of positions, [B, T, D]. They start again with each sentence.

        The first half of the channels counts from the start. So does the second half, except in a
        source (`src_BT`), where it counts as `count_from` says.
        """
        c = self.config
        if c.positions != "sinusoidal":
            return jnp.zeros((1, 1, c.d_model), self.dtype)
        counts = [segment_positions(segments_BT)] * (c.d_model // c.channels_of_a_count)
        if c.count_from == "both_ends" and src_BT is not None:
            # The last, EOS, is -1. The length of a target is not known in advance.
            counts[1] = positions_from_the_end(segments_BT) - 1
        if c.count_from == "separator" and src_BT is not None:
            counts[1] = segment_positions(split_segments(segments_BT, src_BT, c.separator))
        lowest = c.first_position - c.random_stride
        highest = c.first_position + c.random_start + c.random_stride * segments_BT.shape[1]
        encoding_TX = sinusoidal_encoding(jnp.arange(lowest, highest), c.channels_of_a_count)
        encoding_TX = encoding_TX.astype(self.dtype)
        numbers = [spacing.start_B1 + count_BT * spacing.stride_B1 for count_BT in counts]
        return jnp.concatenate([encoding_TX[number_BT - lowest] for number_BT in numbers], axis=-1)


def _log_uniform(key: jax.Array, most: int) -> jax.Array:
    """A random number from 1 to `most`, int32 [1]. Its logarithm is uniform, more or less.

    If the number itself were uniform, few rows would have 1, the number used in tests, and the
    model would learn it late.
    """
    log_1 = jax.random.uniform(key, (1,), maxval=jnp.log(most + 1))
    return jnp.minimum(jnp.exp(log_1), most).astype(jnp.int32)  # it may be rounded up


def build(config: UniversalConfig, sizes: Sizes, rngs: nnx.Rngs) -> Universal:
    """The module; raises UserError where the config does not fit the data."""
    check_shared(config.share_embeddings, sizes)
    if config.count_from == "separator":
        check_range(config, "model", "separator", UNK + 1, sizes.source_vocab)
    return Universal(config, sizes, rngs=rngs)


def training_flops(
    config: UniversalConfig, sizes: Sizes, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs of all steps, counted as for the Transformer; halted positions are computed, too."""
    c = config
    flops = transformer_flops(c, sizes, source_lengths, target_lengths)
    s, t = source_lengths / c.words_per_position, target_lengths
    more = c.d_model * (c.halting != "none")
    if c.transition == "separable_convolution":
        more += SeparableTransition.taps(c)
    more *= s * c.encoder_steps + t * c.decoder_steps
    # The memory's keys and values are computed once.
    return flops + 3 * 2 * (more - s * (c.decoder_steps - 1) * c.key_weights)


FAMILY = Family(
    config=UniversalConfig,
    build=build,
    sharding=(
        *TRANSFORMER.sharding,
        (r"(encoder|decoder)/(signal_ND|halting_D1|halting_bias)", P()),
        (r"(encoder|decoder)/norm/(scale|bias)", P()),
        (r".+/feed_forward/(hidden|output)_taps_W[DF]", P()),
    ),
    flops=training_flops,
    packs=True,
)
