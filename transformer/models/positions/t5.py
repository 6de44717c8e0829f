"""A learned bias of scores for each bucket of distances (Raffel et al. 2020, T5, arXiv 1910.10683).

T5 does not divide products of queries and keys by sqrt(d_k); here they are divided, as elsewhere.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer.models.positions.kind import Positions, Scoring
from transformer.system.errors import UserError

BUCKETS = 32  # an encoder has half of them for each direction


def starts(num_buckets: int, max_distance: int) -> np.ndarray:
    """The first distance of each bucket but bucket 0.

    Half of the buckets hold one distance each; the others grow by one factor, up to max_distance.
    """
    exact = num_buckets // 2
    growth = (max_distance / exact) ** (np.arange(num_buckets - exact) / (num_buckets - exact))
    return np.concatenate([np.arange(1, exact), np.ceil(exact * growth - 1e-6)]).astype(np.int32)


class T5(Positions):
    """One table for all layers of a stack; each head has its own biases."""

    scores = True
    max_distance = 128

    def __init__(self, config, causal, rngs):
        init = nnx.initializers.xavier_uniform()
        shape = (BUCKETS, config.num_heads)
        self.bias_RH = nnx.Param(init(rngs.params(), shape, jnp.float32))
        self.causal, self.furthest = causal, config.max_distance or self.max_distance

    @classmethod
    def check(cls, config):
        if 0 < config.max_distance <= BUCKETS // 2:
            raise UserError(
                f"model.max_distance is {config.max_distance}, but nearer than {BUCKETS // 2} each "
                f"distance of 't5' has its own bucket; set it to more than {BUCKETS // 2}, or to 0"
            )

    def scoring(self, distances):
        # A decoder sees no later keys.
        away = -distances if self.causal else jnp.abs(distances)
        num_buckets = BUCKETS if self.causal else BUCKETS // 2
        first = jnp.asarray(starts(num_buckets, self.furthest))
        bucket = jnp.searchsorted(first, away, side="right", method="compare_all")
        if not self.causal:
            bucket += num_buckets * (distances > 0)
        return Scoring(bias_RH=self.bias_RH[...][bucket])
