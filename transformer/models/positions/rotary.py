"""Rotary positions (Su et al. 2021, RoFormer, arXiv 2104.09864).

Two channels of a query or key are a point in the plane, which its position turns. So the product of
a query and a key depends on their distance. Channels 2i and 2i + 1 belong together, as published;
others take the channels i and i + K / 2.
"""

import jax.numpy as jnp
import numpy as np

from transformer.models.numerics import at_least_float32
from transformer.models.positions.kind import Positions
from transformer.system.errors import UserError


class Rotary(Positions):
    """Turns channels 2i and 2i + 1 by position / 10000^(2i/K)."""

    @classmethod
    def check(cls, config):
        super().check(config)
        if config.key_size % 2:
            raise UserError(
                f"model.positions is 'rotary', which turns pairs of channels, and keys have "
                f"{config.key_size}; set model.d_k to an even number"
            )

    def rotate(self, x_BHTK, place):
        K, dtype = x_BHTK.shape[-1], at_least_float32(x_BHTK.dtype)
        frequency_K = jnp.asarray(10000.0 ** (-np.arange(0, K, 2) / K))
        angle_B1TK = place.positions_BT[:, None, :, None] * frequency_K[None, None, None]
        cos, sin = jnp.cos(angle_B1TK).astype(dtype), jnp.sin(angle_B1TK).astype(dtype)
        pairs = x_BHTK.astype(dtype).reshape(*x_BHTK.shape[:-1], K // 2, 2)
        x, y = pairs[..., 0], pairs[..., 1]
        turned = jnp.stack([x * cos - y * sin, x * sin + y * cos], axis=-1)
        return turned.reshape(x_BHTK.shape).astype(x_BHTK.dtype)
