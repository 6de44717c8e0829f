"""Arithmetic below the layers: matrix products, normalisation, and random bits for dropout."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.system.cpu import multiplies_bfloat16


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """The type for sums that need more than bfloat16: float32, or float64 where that is used."""
    return jnp.promote_types(dtype, jnp.float32)


class DropoutRngs:
    """Random keys for dropout, one for each row of a batch; `nnx.Rngs` works in its place.

    A row's dropout depends only on its number, not on the rows beside it: it stays the same
    when a batch is split into other parts, or over other devices.
    """

    def __init__(self, key: jax.Array, rows_B: jax.Array):
        """rows_B: the number of each row, such as its index in the whole update."""
        self._keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows_B)
        self._count = 0

    def dropout(self) -> jax.Array:
        """Fresh keys at each call, [B]."""
        self._count += 1
        return jax.vmap(jax.random.fold_in, (0, None))(self._keys_B, self._count)


class StepRngs(DropoutRngs):
    """Keys for one step of a loop whose body is traced once; every step draws its own."""

    def __init__(self, keys_B: jax.Array, step: jax.Array):
        """keys_B: `row_keys`, drawn before the loop."""
        self._keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, step)
        self._count = 0


def row_keys(rngs: DropoutRngs, num_rows: int) -> jax.Array:
    """A fresh key for each row, [B]."""
    keys = rngs.dropout()
    return keys if keys.ndim else jax.random.split(keys, num_rows)


class _DrawnKeys(NamedTuple):
    """A stand-in for DropoutRngs, with keys drawn earlier, one for each row."""

    keys_B: jax.Array

    def dropout(self) -> jax.Array:
        return self.keys_B


def split_rngs(rngs: DropoutRngs, num_rows: int, num_blocks: int) -> _DrawnKeys:
    """Separate keys for each block, along a new first axis."""
    keys_B = row_keys(rngs, num_rows)
    fold_in_rows = jax.vmap(jax.random.fold_in, (0, None))
    return _DrawnKeys(jax.vmap(fold_in_rows, (None, 0))(keys_B, jnp.arange(num_blocks)))


@jax.named_scope("dropout")
def dropout(x: jax.Array, rate: float, rngs: DropoutRngs | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    `rngs=None` means evaluation: x is returned unchanged. The first axis of x is the batch.
    """
    if rngs is None or rate == 0:
        return x
    keys_B = row_keys(rngs, x.shape[0])
    threshold = threshold_of(rate)
    keep = random_words(keys_B, x.shape) >= np.uint32(threshold)
    scaled = x.astype(at_least_float32(x.dtype)) * (2**32 / (2**32 - threshold))
    return jnp.where(keep, scaled, 0).astype(x.dtype)


def threshold_of(rate: float) -> int:
    """The threshold for random words: those below it, a share of `rate`, drop their elements."""
    return min(round(rate * 2**32), 2**32 - 1)


def random_words(keys_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random 32-bit words, `shape` = [B, ...]; row b depends only on key b.

    Each word is a hash of its index and the key. It costs next to nothing, since XLA fuses it into
    the loop that uses it; `jax.random.bits` takes some twenty times the arithmetic. The words are
    good enough for dropout, and no better.
    """
    words_B2 = jax.random.key_data(keys_B)[:, :2]
    first, second = (words_B2[:, i].reshape(-1, *[1] * (len(shape) - 1)) for i in (0, 1))
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        place = place * np.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return mix(mix(place ^ first) ^ second)


def mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every bit of x affects every bit of the result."""
    # Multipliers and shifts: C. Wellons, "Prospecting for Hash Functions", 2018.
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def multiply(spec: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The einsum of two arrays: operands of type `dtype`, sums of at least float32.

    The same holds for the products of the gradient. There `jnp.einsum` would multiply its float32
    gradient with a bfloat16 operand in float32, and round the gradient of a parameter to bfloat16.
    Every letter must occur in at least two of the three terms of the spec.

    float32 means float32 on every device. JAX's default would round float32 operands: on GPUs
    to TF32 (10 bits of mantissa, from Ampere on), on TPUs to bfloat16 (7 bits). The price is
    speed: on TPUs six passes instead of one, on GPUs no tensor cores. For speed use bfloat16,
    which this does not affect. CPUs round nothing; those that multiply bfloat16 more slowly than
    float32 widen large operands first.
    """
    return _multiply(spec, jnp.dtype(dtype), x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply(spec: str, dtype: jnp.dtype, x: jax.Array, y: jax.Array) -> jax.Array:
    def product(x, y):
        return jnp.einsum(
            spec,
            x.astype(dtype),
            y.astype(dtype),
            precision=jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None,
            preferred_element_type=at_least_float32(dtype),
        )

    if dtype != jnp.bfloat16 or multiplies_bfloat16() or _reuse(spec, x, y) < WIDENED_FROM:
        return product(x, y)
    return jax.lax.platform_dependent(
        x, y, cpu=functools.partial(_widened_product, spec), default=product
    )


def multiply_heads(spec: str, x_BHTY: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`multiply` of arrays [B, H, T, ...] and [B, G, ...], where H / G heads share one of y.

    Head h of x belongs to head h // (H / G) of y. Both have the letter H in the spec.
    """
    B, H, T, Y = x_BHTY.shape
    G = y.shape[1]
    product = multiply(spec, x_BHTY.reshape(B, G, H // G * T, Y), y, dtype)
    return product.reshape(B, H, T, product.shape[3])


def as_operand(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """x as `multiply` takes its operands on this CPU, for an x that is multiplied often."""
    # Where large products widen bfloat16, each product would have to do so again.
    return x.astype(dtype) if dtype == jnp.bfloat16 and multiplies_bfloat16() else x


# A product must use each number this often before widening pays.
WIDENED_FROM = 128


def _reuse(spec: str, x: jax.Array, y: jax.Array) -> float:
    """The multiplications of a product, per number in its operands."""
    x_term, y_term = spec.split("->")[0].split(",")
    sizes = dict(zip(x_term + y_term, x.shape + y.shape, strict=True))
    return math.prod(sizes.values()) / max(x.size + y.size, 1)


def _widened_product(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The product of operands rounded to bfloat16, by float32 arithmetic.

    Only the order of sums differs: products of two bfloat16 numbers are exact in float32.
    """
    return jnp.einsum(spec, rounded_to_bfloat16(x), rounded_to_bfloat16(y))


def rounded_to_bfloat16(x: jax.Array) -> jax.Array:
    """The nearest bfloat16 numbers, in float32."""
    # XLA would leave out a cast to bfloat16 and back.
    return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)


def _multiply_forward(spec, dtype, x, y):
    # Operands are kept in their own type, so that a parameter is not kept twice.
    return _multiply(spec, dtype, x, y), (x, y)


def _multiply_backward(spec, dtype, operands, gradient):
    x, y = operands
    terms, result = spec.split("->")
    x_term, y_term = terms.split(",")
    x_gradient = _multiply(f"{result},{y_term}->{x_term}", dtype, gradient, y)
    # XLA on the CPU transposes the first operand, which is slow. So the smaller operand goes
    # first, and the result begins with its letters. The result, smaller than either, is then
    # transposed once for all its readers.
    (_, first, first_term), (_, second, second_term) = sorted(
        [(x.size, x, x_term), (gradient.size, gradient, result)], key=lambda operand: operand[0]
    )
    order = "".join(c for c in dict.fromkeys(first_term + second_term) if c in y_term)
    y_gradient = _multiply(f"{first_term},{second_term}->{order}", dtype, first, second)
    if order != y_term:
        y_gradient = _made(jnp.einsum(f"{order}->{y_term}", _made(y_gradient)))
    return x_gradient.astype(x.dtype), y_gradient.astype(y.dtype)


def _made(x: jax.Array) -> jax.Array:
    """x, which XLA on the CPU then writes as it is, once for all its users."""
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)


def unmerged(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both operands of a product that XLA on a GPU then computes separately.

    Otherwise it would merge products of one array with several matrices, write the result in
    float32, and cut it apart in extra kernels.
    """
    return jax.lax.platform_dependent(
        x, y, cuda=lambda *both: jax.lax.optimization_barrier(both), default=lambda *both: both
    )


_multiply.defvjp(_multiply_forward, _multiply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def standardize(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon), over the last axis.

    The variance is the mean square of x - mean. Flax takes the mean of squares minus the square of
    the mean, which has no digit left where the mean is a thousand standard deviations. Our own
    gradient makes up for the second pass over x, and need not keep x.
    """
    return _standardize_forward(x, epsilon)[0]


def _standardize_forward(x, epsilon):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + epsilon)
    y = centered * rate
    return y, (y, rate)


def _standardize_backward(epsilon, kept, gradient):
    y, rate = kept
    mean = jnp.mean(gradient, axis=-1, keepdims=True)
    along_y = jnp.mean(gradient * y, axis=-1, keepdims=True)
    return (rate * (gradient - mean - y * along_y),)


standardize.defvjp(_standardize_forward, _standardize_backward)


def split(x: jax.Array, num_blocks: int, axis: int) -> jax.Array:
    """Equal blocks of an axis, stacked along a new first axis; zeros fill up the last block."""
    size = -(-x.shape[axis] // num_blocks)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, num_blocks * size - x.shape[axis])
    x = jnp.pad(x, padding)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def join(x: jax.Array, axis: int) -> jax.Array:
    """Undoes `split`, except that the zeros of the last block stay."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def shifted(x_BT: jax.Array, offset: int) -> jax.Array:
    """x at position t + offset of its row; zeros beyond the ends."""
    length = x_BT.shape[1]
    padding = [(0, 0)] * x_BT.ndim
    padding[1] = (max(0, -offset), max(0, offset))
    start = max(0, offset)
    return jnp.pad(x_BT, padding)[:, start : start + length]
