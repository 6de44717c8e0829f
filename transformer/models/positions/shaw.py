"""Relative positions as vectors (Shaw et al. 2018, arXiv 1803.02155)."""

import jax.numpy as jnp
from flax import nnx

from transformer.models.positions.kind import Positions, Scoring


class Shaw(Positions):
    """A vector for each distance, clipped at max_distance, is added to keys; another to values.

    Each layer has its own vectors; its heads share them.
    """

    is_shared, scores = False, True
    max_distance = 16
    has_values = True

    def __init__(self, config, causal, rngs):
        def table(size: int) -> nnx.Param:
            init = nnx.initializers.xavier_uniform()
            return nnx.Param(init(rngs.params(), (2 * self.clip + 1, size), jnp.float32))

        self.clip = config.max_distance or self.max_distance
        self.key_RK = table(config.key_size)
        if self.has_values:
            self.value_RU = table(config.value_size)

    @classmethod
    def multiplications(cls, config):
        # All distances between T queries and T keys are about 2 T.
        return 2 * config.num_heads * (config.key_size + cls.has_values * config.value_size)

    def scoring(self, distances):
        index = jnp.clip(distances, -self.clip, self.clip) + self.clip
        value_RU = self.value_RU[...][index] if self.has_values else None
        return Scoring(key_RK=self.key_RK[...][index], value_RU=value_RU)


class ShawKeys(Shaw):
    """Without the vectors for values: the paper found them to change little."""

    has_values = False
