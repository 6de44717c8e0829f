"""Add & norm in one pass over its data on a GPU, forward and backward: a Pallas kernel.

LayerNorm(x + Dropout(y)), as in `AddAndNorm`, reads x and y and writes the result: 3 arrays. XLA
makes three kernels of it and eight of its gradient, since it fuses a reduction over rows only
partly with what comes before or after it. Here the backward pass reads x, y and the gradient, and
computes the rest again: the sum, its statistics, and the dropout, which is a hash of the index.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import triton
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer.models.numerics import mix, threshold_of
from transformer.system.sharding import on_each_device

# The numbers of an array that are in a program's registers at once.
BLOCK = 8192
# Blocks per program of the backward pass, which adds up gradients of scale and bias.
BLOCKS = 4


class Settings(NamedTuple):
    """The settings that a kernel is compiled for."""

    rate: float  # of dropout
    epsilon: float
    interpret: bool = False  # run without a GPU, slowly


def fits(d_model: int) -> bool:
    """True if the kernel can take rows of this size: Triton's blocks are powers of 2."""
    return d_model & (d_model - 1) == 0 and 16 <= d_model <= BLOCK


def add_and_norm(
    x_BTD: jax.Array,
    y_BTD: jax.Array,
    keys_B: jax.Array | None,
    scale_D: jax.Array,
    bias_D: jax.Array,
    settings: Settings,
) -> jax.Array:
    """LayerNorm(x + Dropout(y)), computed in float32, returned in x.dtype.

    keys_B: for dropout, one for each row; None for no dropout.
    """
    if keys_B is None:
        words_B2, settings = jnp.zeros((x_BTD.shape[0], 2), jnp.uint32), settings._replace(rate=0.0)
    else:
        words_B2 = jax.random.key_data(keys_B)[:, :2]
    return _add_and_norm(settings, x_BTD, y_BTD, words_B2, scale_D, bias_D)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(static, x_BTD, y_BTD, words_B2, scale_D, bias_D):
    return on_each_device(_forward_call(static), x_BTD, y_BTD, words_B2, scale_D, bias_D)


def _forward(static, x_BTD, y_BTD, words_B2, scale_D, bias_D):
    out_BTD = _add_and_norm(static, x_BTD, y_BTD, words_B2, scale_D, bias_D)
    return out_BTD, (x_BTD, y_BTD, words_B2, scale_D)


def _backward(static, kept, gradient_BTD):
    x_BTD, y_BTD, words_B2, scale_D = kept
    dx_BTD, dy_BTD, sums_BX2D = on_each_device(
        _backward_call(static), x_BTD, y_BTD, words_B2, scale_D, gradient_BTD
    )
    dscale_D, dbias_D = sums_BX2D.sum(axis=(0, 1))
    no_gradient = np.zeros(words_B2.shape, jax.dtypes.float0)
    return dx_BTD, dy_BTD, no_gradient, dscale_D, dbias_D


_add_and_norm.defvjp(_forward, _backward)


def _block_rows(T: int, D: int) -> int:
    return math.gcd(T, BLOCK // D)


def _normalized(x, y, words_ref, static, begin):
    """(x + Dropout(y) - mean) / deviation, 1 / deviation, and the factors of dropout."""
    if threshold := threshold_of(static.rate):
        R, D = x.shape
        row_RD = begin.astype(jnp.uint32) + jax.lax.broadcasted_iota(jnp.uint32, (R, D), 0)
        place_RD = row_RD * np.uint32(D) + jax.lax.broadcasted_iota(jnp.uint32, (R, D), 1)
        word_RD = mix(mix(place_RD ^ words_ref[0, 0]) ^ words_ref[0, 1])
        factor = 2**32 / (2**32 - threshold)
        kept = jnp.where(word_RD >= np.uint32(threshold), jnp.float32(factor), 0.0)
        y = y * kept
    else:
        kept = None
    total = x + y
    centered = total - jnp.mean(total, axis=1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=1, keepdims=True)
    rate = jax.lax.rsqrt(variance + static.epsilon)
    return centered * rate, rate, kept


def _forward_kernel(static, x_ref, y_ref, words_ref, scale_ref, bias_ref, out_ref):
    R = x_ref.shape[1]
    x, y = (ref[0].astype(jnp.float32) for ref in (x_ref, y_ref))
    normal, _, _ = _normalized(x, y, words_ref, static, pl.program_id(1) * R)
    out_ref[0] = (normal * scale_ref[...][None] + bias_ref[...][None]).astype(out_ref.dtype)


def _backward_kernel(static, R, x_ref, y_ref, words_ref, scale_ref, grad_ref, *outputs):
    dx_ref, dy_ref, sums_ref = outputs
    rows = x_ref.shape[1]
    first = pl.program_id(1) * rows

    def block(i, sums):
        here = (0, pl.ds(i * R, R))
        x, y, gradient = (ref[here].astype(jnp.float32) for ref in (x_ref, y_ref, grad_ref))
        normal, rate, kept = _normalized(x, y, words_ref, static, first + i * R)
        scaled = gradient * scale_ref[...][None]
        mean = jnp.mean(scaled, axis=1, keepdims=True)
        along = jnp.mean(scaled * normal, axis=1, keepdims=True)
        dx = rate * (scaled - mean - normal * along)
        dx_ref[here] = dx.astype(dx_ref.dtype)
        dy_ref[here] = (dx if kept is None else dx * kept).astype(dy_ref.dtype)
        return sums[0] + jnp.sum(gradient * normal, axis=0), sums[1] + jnp.sum(gradient, axis=0)

    zero = jnp.zeros(x_ref.shape[2], jnp.float32)
    dscale, dbias = jax.lax.fori_loop(0, rows // R, block, (zero, zero))
    sums_ref[0, 0, 0], sums_ref[0, 0, 1] = dscale, dbias


def _specs(rows: int, D: int):
    """Blocks of [B, T, D], [B, 2] and [D] for a grid [B, T / rows]."""
    return (
        pl.BlockSpec((1, rows, D), lambda b, i: (b, i, 0)),
        pl.BlockSpec((1, 2), lambda b, i: (b, 0)),
        pl.BlockSpec((D,), lambda b, i: (0,)),
    )


def _run_forward(static, x_BTD, y_BTD, words_B2, scale_D, bias_D):
    B, T, D = x_BTD.shape
    rows = _block_rows(T, D)
    array, words, vector = _specs(rows, D)
    return pl.pallas_call(
        functools.partial(_forward_kernel, static),
        out_shape=jax.ShapeDtypeStruct(x_BTD.shape, x_BTD.dtype),
        grid=(B, T // rows),
        in_specs=[array, array, words, vector, vector],
        out_specs=array,
        interpret=static.interpret,
        compiler_params=triton.CompilerParams(num_warps=8),
        name="add_and_norm",
    )(x_BTD, y_BTD, words_B2, scale_D, bias_D)


def _run_backward(static, x_BTD, y_BTD, words_B2, scale_D, gradient_BTD):
    B, T, D = x_BTD.shape
    R = _block_rows(T, D)
    rows = R * math.gcd(T // R, BLOCKS)
    array, words, vector = _specs(rows, D)
    sums_spec = pl.BlockSpec((1, 1, 2, D), lambda b, i: (b, i, 0, 0))
    return pl.pallas_call(
        functools.partial(_backward_kernel, static, R),
        out_shape=(
            jax.ShapeDtypeStruct(x_BTD.shape, x_BTD.dtype),
            jax.ShapeDtypeStruct(y_BTD.shape, y_BTD.dtype),
            jax.ShapeDtypeStruct((B, T // rows, 2, D), jnp.float32),
        ),
        grid=(B, T // rows),
        in_specs=[array, array, words, vector, array],
        out_specs=(array, array, sums_spec),
        interpret=static.interpret,
        compiler_params=triton.CompilerParams(num_warps=8),
        name="add_and_norm_gradient",
    )(x_BTD, y_BTD, words_B2, scale_D, gradient_BTD)


def _split_rows_alone(run, rule: str):
    """`run(static, *arrays)`, where each device takes the rows it has; XLA cannot split it."""

    @functools.cache
    def call(static):
        function = custom_partitioning(functools.partial(run, static))

        def partition(mesh, argument_shapes, result_shape):
            # Split by the rows of x, the first argument; other dimensions are whole.
            rows = argument_shapes[0].sharding.spec[:1]

            def sharding(shape):
                return NamedSharding(mesh, P(*rows) if len(shape.shape) > 1 else P())

            return (
                mesh,
                functools.partial(run, static),
                jax.tree.map(sharding, result_shape),
                jax.tree.map(sharding, argument_shapes),
            )

        function.def_partition(
            partition=partition,
            sharding_rule=rule,
            need_replication_factors=tuple(factor for factor in "tdkxy" if factor in rule),
        )
        return function

    return call


_forward_call = _split_rows_alone(_run_forward, "b t d, b t d, b k, d, d -> b t d")
_backward_call = _split_rows_alone(
    _run_backward, "b t d, b t d, b k, d, b t d -> b t d, b t d, b x y d"
)
