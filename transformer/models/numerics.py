"""Arithmetic below the layers: matrix products, normalisation, and random bits for dropout."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from transformer.system.cpu import multiplies_bfloat16


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """The type for sums that bfloat16 would lose: float32, or float64 where that is used."""
    return jnp.promote_types(dtype, jnp.float32)


class DropoutRngs:
    """Random keys for dropout, one for each row of a batch; `nnx.Rngs` will do in its place.

    A row's dropout depends on its number alone, not on the rows beside it: it stays the same
    when a batch is split into other parts, or over other devices.
    """

    def __init__(self, key: jax.Array, rows_B: jax.Array):
        """rows_B: the number of each row, such as its place in the whole update."""
        self._keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows_B)
        self._count = 0

    def dropout(self) -> jax.Array:
        """Fresh keys at each call, [B]."""
        self._count += 1
        return jax.vmap(jax.random.fold_in, (0, None))(self._keys_B, self._count)


class StepRngs(DropoutRngs):
    """Keys for one step of a loop whose body is traced once: every step draws others."""

    def __init__(self, keys_B: jax.Array, step: jax.Array):
        """keys_B: `row_keys`, drawn before the loop."""
        self._keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, step)
        self._count = 0


def row_keys(rngs: DropoutRngs, num_rows: int) -> jax.Array:
    """A fresh key for each row, [B]."""
    keys = rngs.dropout()
    return keys if keys.ndim else jax.random.split(keys, num_rows)


@jax.named_scope("dropout")
def dropout(x: jax.Array, rate: float, rngs: DropoutRngs | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    `rngs=None` means evaluation: x is returned as it is. The first axis of x is the batch.
    """
    if rngs is None or rate == 0:
        return x
    keys_B = row_keys(rngs, x.shape[0])
    threshold = threshold_of(rate)
    keep = random_words(keys_B, x.shape) >= np.uint32(threshold)
    scaled = x.astype(at_least_float32(x.dtype)) * (2**32 / (2**32 - threshold))
    return jnp.where(keep, scaled, 0).astype(x.dtype)


def threshold_of(rate: float) -> int:
    """Random words below it, a share of `rate` of all, are those of dropped elements."""
    return min(round(rate * 2**32), 2**32 - 1)


def random_words(keys_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random 32-bit words, `shape` = [B, ...]; row b depends on key b alone.

    Each word is a hash of its place and the key: unlike `jax.random.bits`, some twenty times
    the arithmetic, it costs next to nothing, since XLA makes it part of the loop that uses it.
    Good enough to drop units with, and no better.
    """
    words_B2 = jax.random.key_data(keys_B)[:, :2]
    first, second = (words_B2[:, i].reshape(-1, *[1] * (len(shape) - 1)) for i in (0, 1))
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        place = place * np.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return mix(mix(place ^ first) ^ second)


def mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit words in which every bit of x moves every bit of the result."""
    # Multipliers and shifts: C. Wellons, "Prospecting for Hash Functions", 2018.
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def multiply(spec: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The einsum of two arrays: operands of type `dtype`, sums of at least float32.

    So are the products of the gradient. `jnp.einsum` would multiply its float32 gradient with
    a bfloat16 operand there, in float32; and round the gradient of a parameter to bfloat16.
    Every letter must stand in at least two of the three terms of the spec.

    float32 means float32 on every device. JAX's default would round float32 operands: on GPUs
    to TF32 (10 bits of mantissa, from Ampere on), on TPUs to bfloat16 (7 bits). The price is
    speed: on TPUs six passes instead of one, on GPUs no tensor cores. For speed there is
    bfloat16, for which nothing changes. CPUs have no such choice; those that multiply bfloat16 more
    slowly than float32 widen large operands first.
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


def as_operand(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """x as `multiply` takes its operands on this CPU, if it is multiplied often."""
    # Where large products widen bfloat16, they would have to do it each time.
    return x.astype(dtype) if dtype == jnp.bfloat16 and multiplies_bfloat16() else x


# How often a product must use a number before it is worth the time to widen it.
WIDENED_FROM = 128


def _reuse(spec: str, x: jax.Array, y: jax.Array) -> float:
    """The multiplications of a product over the numbers in its operands."""
    x_term, y_term = spec.split("->")[0].split(",")
    sizes = dict(zip(x_term + y_term, x.shape + y.shape, strict=True))
    return math.prod(sizes.values()) / max(x.size + y.size, 1)


def _widened_product(spec: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The product of operands rounded to bfloat16, by float32 arithmetic.

    The same but for the order of sums: products of two bfloat16 numbers are exact in float32.
    """
    return jnp.einsum(spec, rounded_to_bfloat16(x), rounded_to_bfloat16(y))


def rounded_to_bfloat16(x: jax.Array) -> jax.Array:
    """The nearest numbers that bfloat16 has, in float32."""
    # A cast to bfloat16 and back XLA would leave out.
    return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)


def _multiply_forward(spec, dtype, x, y):
    # Kept as they came, so that a parameter is not kept twice.
    return _multiply(spec, dtype, x, y), (x, y)


def _multiply_backward(spec, dtype, operands, gradient):
    x, y = operands
    terms, result = spec.split("->")
    x_term, y_term = terms.split(",")
    x_gradient = _multiply(f"{result},{y_term}->{x_term}", dtype, gradient, y)
    # XLA on the CPU transposes the first operand, which is slow: let it be the smaller one, and
    # let the result begin with its letters; then transpose that, which is smaller than either,
    # once for all who read it.
    (_, first, first_term), (_, second, second_term) = sorted(
        [(x.size, x, x_term), (gradient.size, gradient, result)], key=lambda operand: operand[0]
    )
    order = "".join(c for c in dict.fromkeys(first_term + second_term) if c in y_term)
    y_gradient = _multiply(f"{first_term},{second_term}->{order}", dtype, first, second)
    if order != y_term:
        y_gradient = _made(jnp.einsum(f"{order}->{y_term}", _made(y_gradient)))
    return x_gradient.astype(x.dtype), y_gradient.astype(y.dtype)


def _made(x: jax.Array) -> jax.Array:
    """x, which XLA on the CPU then makes as it stands, for all who use it."""
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)


def unmerged(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both operands of a product, which XLA on a GPU then computes by itself.

    It would merge products of one array with several matrices, write the result in float32, and
    cut it apart in kernels of their own.
    """
    return jax.lax.platform_dependent(
        x, y, cuda=lambda *both: jax.lax.optimization_barrier(both), default=lambda *both: both
    )


_multiply.defvjp(_multiply_forward, _multiply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def standardize(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon), over the last axis.

    The variance is the mean square of x - mean. Flax takes the mean of squares less the square of
    the mean, which has no digit left where the mean is a thousand standard deviations. A gradient
    of our own makes up for the second pass over x, and it need not keep x.
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
    """Equal blocks of an axis, along a first axis; zeros fill up the last."""
    size = -(-x.shape[axis] // num_blocks)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, num_blocks * size - x.shape[axis])
    x = jnp.pad(x, padding)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def join(x: jax.Array, axis: int) -> jax.Array:
    """Undoes `split`, but for what fills up the last block."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def shifted(x_BT: jax.Array, offset: int) -> jax.Array:
    """x at position t + offset of its row; zeros beyond the ends."""
    length = x_BT.shape[1]
    padding = [(0, 0)] * x_BT.ndim
    padding[1] = (max(0, -offset), max(0, offset))
    start = max(0, offset)
    return jnp.pad(x_BT, padding)[:, start : start + length]
