"""Batch normalisation with a scale and a shift for each class (arXiv 1707.00683).

The letters are those of spectral.py.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import at_least_float32

EPSILON = 1e-5


class Statistic(nnx.Variable):
    """The mean or the variance of a channel: state that no gradient updates."""


class ConditionalNorm(nnx.Module):
    """scale[class] * (x - mean) / sqrt(variance + epsilon) + shift[class], for each channel.

    decay: None takes the stored mean and variance. A number takes those of the whole batch, over
    all devices; the stored ones become decay * stored + (1 - decay) * batch.
    """

    def __init__(self, num_classes: int, channels: int):
        self.scale_NC = nnx.Param(jnp.ones((num_classes, channels), jnp.float32))
        self.shift_NC = nnx.Param(jnp.zeros((num_classes, channels), jnp.float32))
        self.mean_C = Statistic(jnp.zeros(channels, jnp.float32))
        self.var_C = Statistic(jnp.ones(channels, jnp.float32))

    def __call__(
        self, x_BHWC: jax.Array, labels_B: jax.Array, decay: jax.Array | float | None
    ) -> jax.Array:
        x = x_BHWC.astype(at_least_float32(x_BHWC.dtype))
        if decay is None:
            mean_C, var_C = self.mean_C[...], self.var_C[...]
        else:
            mean_C = jnp.mean(x, axis=(0, 1, 2))
            var_C = jnp.mean(jnp.square(x - mean_C.reshape(1, 1, 1, -1)), axis=(0, 1, 2))
            for stored, new in ((self.mean_C, mean_C), (self.var_C, var_C)):
                stored[...] = decay * stored[...] + (1 - decay) * jax.lax.stop_gradient(new)
        scale_BC = self.scale_NC[...][labels_B] * jax.lax.rsqrt(var_C + EPSILON)[None]
        shift_BC = self.shift_NC[...][labels_B] - mean_C[None] * scale_BC
        y = x * scale_BC[:, None, None] + shift_BC[:, None, None]
        return y.astype(x_BHWC.dtype)
