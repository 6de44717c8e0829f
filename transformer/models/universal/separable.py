"""The Universal Transformer's other transition: separable convolutions (Section 2.1).

A depthwise convolution of width 3 and a product to d_ff, ReLU, a depthwise convolution of width 5
and a product back to d_model, as in Tensor2Tensor.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.layers import ACTIVATIONS, LayerConfig, Linear
from transformer.models.numerics import DropoutRngs, dropout, shifted

WIDTHS = 3, 5


class SeparableTransition(nnx.Module):
    """Replaces the feed-forward network. A causal one sees no later positions."""

    def __init__(self, config: LayerConfig, causal: bool, rngs: nnx.Rngs):
        D, F = config.d_model, config.d_ff
        dtype = jnp.dtype(config.dtype)

        def taps(width, size):
            init = nnx.initializers.normal(stddev=width**-0.5)
            return nnx.Param(init(rngs.params(), (width, size), jnp.float32))

        self.hidden_taps_WD = taps(WIDTHS[0], D)
        self.hidden = Linear(D, F, use_bias=True, dtype=dtype, rngs=rngs)
        self.output_taps_WF = taps(WIDTHS[1], F)
        self.output = Linear(F, D, use_bias=True, dtype=dtype, rngs=rngs)
        self.activation, self.dropout_rate = config.activation, config.activation_dropout
        self.causal, self.dtype = causal, dtype

    @staticmethod
    def taps(config: LayerConfig) -> int:
        """The number of weights applied to each token in the depthwise convolutions."""
        return WIDTHS[0] * config.d_model + WIDTHS[1] * config.d_ff

    def __call__(
        self,
        x_BTD: jax.Array,
        segments_BT: jax.Array | None,
        rngs: DropoutRngs | None = None,
        cache: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
        """Whole rows [B, T, D] with their segments; or, with a cache, only the newest token."""
        before_D, before_F = cache or (None, None)
        x_BTD, before_D = self._depthwise(x_BTD, self.hidden_taps_WD[...], segments_BT, before_D)
        x_BTF = ACTIVATIONS[self.activation](self.hidden(x_BTD))
        x_BTF = dropout(x_BTF, self.dropout_rate, rngs)
        x_BTF, before_F = self._depthwise(x_BTF, self.output_taps_WF[...], segments_BT, before_F)
        return self.output(x_BTF), None if cache is None else (before_D, before_F)

    def init_cache(self, rows: int) -> tuple[jax.Array, jax.Array]:
        """The last inputs of both convolutions, [N, W - 1, ...], initially zeros."""
        taps = self.hidden_taps_WD, self.output_taps_WF
        shapes = [(rows, width - 1, x.shape[1]) for width, x in zip(WIDTHS, taps, strict=True)]
        return tuple(jnp.zeros(shape, self.dtype) for shape in shapes)

    def _depthwise(self, x_BTC, taps_WC, segments_BT, before_BWC):
        """Convolves each channel. Other sentences of a row, and padding, count as zeros."""
        width = len(taps_WC)
        taps_WC = taps_WC.astype(self.dtype)
        if before_BWC is not None:
            window_BWC = jnp.concatenate([before_BWC, x_BTC], axis=1)
            return jnp.sum(window_BWC * taps_WC[None], axis=1, keepdims=True), window_BWC[:, 1:]
        y_BTC = 0
        for tap in range(width):
            offset = tap - (width - 1 if self.causal else width // 2)
            same_BT = shifted(segments_BT, offset) == segments_BT
            x_shifted_BTC = jnp.where(same_BT[..., None], shifted(x_BTC, offset), 0)
            y_BTC += x_shifted_BTC * taps_WC[tap][None, None]
        return y_BTC, None
