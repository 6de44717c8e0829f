"""The layers of encoder and decoder (Figure 1)."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec as P

from transformer.models.attention import KeyValues, Mask, MultiHeadAttention
from transformer.models.cache import CachedKeyValues, DecodingStep
from transformer.models.layers import AddAndNorm, FeedForward, LayerConfig, Linear
from transformer.models.numerics import DropoutRngs
from transformer.models.positions import Positions
from transformer.system.sharding import ShardingRules

# The mesh axes that dimensions of parameters are split over. Vectors of size d_model are copied:
# they are a thousandth of the model, and each would cost a round of messages.
VOCABULARY = HEADS = D_FF = "tensor"
D_MODEL = "fsdp"
LAYER_SHARDING: ShardingRules = (
    (r".+/(self|cross)_attention/(query|key|value)/kernel", P(D_MODEL, HEADS)),
    (r".+/(self|cross)_attention/(query|key|value)/bias", P(HEADS)),
    (r".+/(self|cross)_attention/output/kernel", P(HEADS, D_MODEL)),
    (r".+/(self|cross)_attention/output/bias", P()),
    (r".+/(self|cross)_attention/(query|key)_norm/scale", P()),
    (r".+/self_attention/positions/\w+", P()),
    (r".+/feed_forward/(hidden|gate)/kernel", P(D_MODEL, D_FF)),
    (r".+/feed_forward/(hidden|gate)/bias", P(D_FF)),
    (r".+/feed_forward/output/kernel", P(D_FF, D_MODEL)),
    (r".+/feed_forward/output/bias", P()),
    (r".+_norm/(norm|norm_of_output)/(scale|bias)", P()),
    (r".+_norm/residual_scale", P()),
)

Network = Callable[[jax.Array, DropoutRngs | None], jax.Array]


def maybe_remat(config: LayerConfig, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, a part of the model, for one call; rematerialised if the config says so.

    With config.rematerialize the backward pass keeps only its arguments and the arrays that it
    closes over, and computes the rest again.
    """
    return jax.checkpoint(function) if config.rematerialize else function


def scale_by_beta(config: LayerConfig, layers: Iterable[nnx.Module], causal: bool) -> None:
    """Multiplies initial matrices of a stack by DeepNorm's beta: all but of queries and keys."""
    if config.norm != "deepnorm":
        return
    _, beta = config.deepnorm(causal)
    for layer in layers:
        for path, part in nnx.iter_modules(layer):
            if isinstance(part, Linear) and path[-1] in ("value", "output", "hidden", "gate"):
                part.kernel[...] = part.kernel[...] * beta


class EncoderLayer(nnx.Module):
    """Self-attention and feed-forward network, each in add & norm (Figure 1, left)."""

    def __init__(
        self,
        config: LayerConfig,
        rngs: nnx.Rngs,
        positions: Positions,
        feed_forward: nnx.Module | None = None,
    ):
        """feed_forward: replaces the network."""
        self.self_attention = MultiHeadAttention(config, rngs, positions)
        self.self_attention_norm = AddAndNorm(config, False)
        self.feed_forward = feed_forward or FeedForward(config, rngs)
        self.feed_forward_norm = AddAndNorm(config, False)

    def __call__(
        self,
        x_BSD: jax.Array,
        mask: Mask,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
        feed_forward: Network | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the layer's output and the weights of its attention (see `attention`).

        feed_forward: calls the network, if it takes more than a `FeedForward` does.
        """
        # 1. Self-attention.
        y_BSD = self.self_attention_norm.before(x_BSD)
        y_BSD, weights_BHSS, _ = self.self_attention.attend_within(
            y_BSD, mask, rngs, return_weights
        )
        x_BSD = self.self_attention_norm.after(x_BSD, y_BSD, rngs)
        # 2. Feed-forward network.
        y_BSD = (feed_forward or self.feed_forward)(self.feed_forward_norm.before(x_BSD), rngs)
        return self.feed_forward_norm.after(x_BSD, y_BSD, rngs), weights_BHSS


class DecoderLayer(nnx.Module):
    """Masked self-attention, attention over the memory, feed-forward (Figure 1, right)."""

    def __init__(
        self,
        config: LayerConfig,
        rngs: nnx.Rngs,
        positions: Positions,
        feed_forward: nnx.Module | None = None,
    ):
        """feed_forward: as in `EncoderLayer`."""
        self.self_attention = MultiHeadAttention(config, rngs, positions)
        self.self_attention_norm = AddAndNorm(config, True)
        self.cross_attention = MultiHeadAttention(config, rngs)
        self.cross_attention_norm = AddAndNorm(config, True)
        self.feed_forward = feed_forward or FeedForward(config, rngs)
        self.feed_forward_norm = AddAndNorm(config, True)

    def __call__(
        self,
        x_BTD: jax.Array,
        memory: KeyValues,
        self_mask: Mask,
        memory_mask: Mask,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
        feed_forward: Network | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array | None, jax.Array | None]]:
        """Returns the layer's output and the weights of both attentions; see `EncoderLayer`."""
        # 1. Masked self-attention.
        y_BTD = self.self_attention_norm.before(x_BTD)
        y_BTD, self_weights_BHTT, _ = self.self_attention.attend_within(
            y_BTD, self_mask, rngs, return_weights
        )
        x_BTD = self.self_attention_norm.after(x_BTD, y_BTD, rngs)
        # 2. Attention over the memory.
        y_BTD = self.cross_attention_norm.before(x_BTD)
        y_BTD, cross_weights_BHTS = self.cross_attention(
            y_BTD, memory, memory_mask, rngs, return_weights
        )
        x_BTD = self.cross_attention_norm.after(x_BTD, y_BTD, rngs)
        # 3. Feed-forward network.
        y_BTD = (feed_forward or self.feed_forward)(self.feed_forward_norm.before(x_BTD), rngs)
        x_BTD = self.feed_forward_norm.after(x_BTD, y_BTD, rngs)
        return x_BTD, (self_weights_BHTT, cross_weights_BHTS)

    def step(
        self, x_BMD: jax.Array, memory: CachedKeyValues, earlier: CachedKeyValues, at: DecodingStep
    ) -> tuple[jax.Array, CachedKeyValues, jax.Array]:
        """Runs the layer on the newest token of each of a sentence's M hypotheses.

        Returns the layer's output, `earlier` for the next token, and the weights [B, H, M, S] of
        the attention over the memory.
        """
        x_BMD, earlier, weights_BHMS = self.attend_step(x_BMD, memory, earlier, at)
        y_BMD = self.feed_forward(self.feed_forward_norm.before(x_BMD), None)
        return self.feed_forward_norm.after(x_BMD, y_BMD, None), earlier, weights_BHMS

    def attend_step(
        self, x_BMD: jax.Array, memory: CachedKeyValues, earlier: CachedKeyValues, at: DecodingStep
    ) -> tuple[jax.Array, CachedKeyValues, jax.Array]:
        """`step` without the feed-forward network."""
        y_BMD = self.self_attention_norm.before(x_BMD)
        y_BMD, earlier = self.self_attention.step_within(y_BMD, earlier, at)
        x_BMD = self.self_attention_norm.after(x_BMD, y_BMD, None)
        y_BMD = self.cross_attention_norm.before(x_BMD)
        parts = [(memory, at.memory_mask_B1S)]
        y_BMD, (weights_BHMS,) = self.cross_attention.step(y_BMD, parts)
        return self.cross_attention_norm.after(x_BMD, y_BMD, None), earlier, weights_BHMS
