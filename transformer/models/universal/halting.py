"""Adaptive computation time (Graves 2016, arXiv 1603.08983), for each position by itself.

A position takes steps until its halting probabilities add up to the threshold. The last step gets
the remainder, 1 less the probabilities before it. So p = 0.4, 0.4, 0.4 is three steps with the
weights 0.4, 0.4 and 0.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Halting(NamedTuple):
    """The progress of each position; every field is [B, T], in at least float32."""

    probability_BT: jax.Array  # the sum of the weights so far
    remainder_BT: jax.Array  # 0 until a position halts
    num_steps_BT: jax.Array


def begin(shape: tuple[int, int], dtype: jnp.dtype = jnp.float32) -> Halting:
    return Halting(*[jnp.zeros(shape, dtype)] * 3)


def halt(halting: Halting, p_BT: jax.Array, threshold: float) -> tuple[Halting, jax.Array]:
    """One step with the halting probabilities p. Returns the step's weight, [B, T].

    The weight is 0 where a position has halted before. A position that never reaches the threshold
    gets no remainder; its weights add up to less than 1.
    """
    probability_BT, remainder_BT, num_steps_BT = halting
    running_BT = remainder_BT == 0
    p_BT = jnp.where(running_BT, p_BT, 0)
    last_BT = running_BT & (probability_BT + p_BT > threshold)
    remainder_BT = jnp.where(last_BT, 1 - probability_BT, remainder_BT)
    weight_BT = jnp.where(last_BT, 1 - probability_BT, p_BT)
    num_steps_BT = num_steps_BT + running_BT
    return Halting(probability_BT + weight_BT, remainder_BT, num_steps_BT), weight_BT


def interpolated(output_BTD: jax.Array, y_BTD: jax.Array, weight_BT: jax.Array) -> jax.Array:
    """y w + output (1 - w): Appendix C of Dehghani et al., "basic" in Tensor2Tensor."""
    weight_BT1 = weight_BT[..., None]
    return y_BTD * weight_BT1 + output_BTD * (1 - weight_BT1)


def accumulated(output_BTD: jax.Array, y_BTD: jax.Array, weight_BT: jax.Array) -> jax.Array:
    """output + y w; after all steps this is Graves' weighted sum."""
    return output_BTD + y_BTD * weight_BT[..., None]


OUTPUTS = {"interpolated": interpolated, "accumulated": accumulated}
