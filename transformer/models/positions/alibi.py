"""Attention with linear biases (Press et al. 2022, ALiBi, arXiv 2108.12409)."""

import jax.numpy as jnp
import numpy as np

from transformer.models.positions.kind import Positions, Scoring


def slopes(num_heads: int) -> np.ndarray:
    """The slope of each head: 2^(-8 i / H) for i = 1, 2, ... H, if H is a power of two.

    Other numbers take the slopes of the power below, and every second one of the power above, as
    the authors' code does.
    """
    power = 2 ** int(np.log2(num_heads))
    own = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([own, between[: num_heads - power]])


class ALiBi(Positions):
    """A score falls with the distance, in each head at its own fixed rate; nothing is learned.

    The paper has decoders only. In an encoder it falls in both directions alike.
    """

    scores = True

    def __init__(self, config, causal, rngs):
        self.num_heads = config.num_heads

    def scoring(self, distances):
        slopes_H = jnp.asarray(slopes(self.num_heads))
        away = jnp.abs(distances)[..., None]
        return Scoring(bias_RH=-away * slopes_H.reshape(*[1] * (away.ndim - 1), -1))
