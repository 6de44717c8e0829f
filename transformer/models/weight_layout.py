"""How a device has the matrices of a search, which multiplies them again and again."""

import enum

import jax
import jax.numpy as jnp


class WeightLayout(enum.Enum):
    """How the matrices of linear layers and of the softmax layer are kept for many products.

    MANY_ROWS: in bfloat16, if they are multiplied as such.
    FEW_ROWS, as in a search for one translation: the same, and float32 matrices transposed. Some
    CPUs multiply these with few rows faster than the rows with the matrix.
    INT8: in whole numbers of 8 bits, and a scale for each column.
    """

    MANY_ROWS = enum.auto()
    FEW_ROWS = enum.auto()
    INT8 = enum.auto()


def quantized(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Whole numbers (int8) and scales (float32), so that x is about their product.

    Numbers along `axis` share a scale: the largest of them becomes 127 or -127.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest) / 127  # NaN stays NaN
    return jnp.round(x / scale).astype(jnp.int8), scale


def multiply_int8(x_BTI: jax.Array, kernel_IO: jax.Array, scale_1O: jax.Array) -> jax.Array:
    """x times a `quantized` matrix, in float32 [B, T, O].

    Each row of x is quantized, too. Sums of products of whole numbers are exact: the result of a
    row does not depend on the rows beside it. But a row that differs in its last bit, as after
    attention in another batch, may be rounded to other whole numbers.
    """
    x_BTI, scale_BT1 = quantized(x_BTI, axis=-1)
    sums_BTO = jnp.einsum("BTI,IO->BTO", x_BTI, kernel_IO, preferred_element_type=jnp.int32)
    return sums_BTO * scale_BT1 * scale_1O[None]
