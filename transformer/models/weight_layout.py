"""Weight layouts: how a device stores the matrices that a search multiplies again and again."""

import enum

import jax
import jax.numpy as jnp


class WeightLayout(enum.Enum):
    """The layout of the matrices of linear layers and of the softmax layer, for many products.

    MANY_ROWS: bfloat16, if they are multiplied in bfloat16.
    FEW_ROWS, as in a search for one translation: the same, but float32 matrices are transposed.
    With few rows, some CPUs multiply matrix by rows faster than rows by matrix.
    INT8: 8-bit integers, with a scale for each column.
    """

    MANY_ROWS = enum.auto()
    FEW_ROWS = enum.auto()
    INT8 = enum.auto()


def quantized(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Integers (int8) and scales (float32) whose product is about x.

    Numbers along `axis` share a scale: the largest of them becomes 127 or -127.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest) / 127  # NaN stays NaN
    return jnp.round(x / scale).astype(jnp.int8), scale


def multiply_int8(x_BTI: jax.Array, kernel_IO: jax.Array, scale_1O: jax.Array) -> jax.Array:
    """x times a `quantized` matrix, in float32 [B, T, O].

    Each row of x is quantized, too. Sums of integer products are exact, so the result of a row
    does not depend on the rows beside it. But a row that differs in its last bit, as after
    attention in another batch, may be rounded to other integers.
    """
    x_BTI, scale_BT1 = quantized(x_BTI, axis=-1)
    sums_BTO = jnp.einsum("BTI,IO->BTO", x_BTI, kernel_IO, preferred_element_type=jnp.int32)
    return sums_BTO * scale_BT1 * scale_1O[None]
