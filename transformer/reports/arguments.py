"""The lecture's arguments for the Transformer: scaling, positions, paths, norms, memory."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer.models.attention import KeyValues, Mask, attention, dot_product_attention
from transformer.models.blocks import EncoderLayer
from transformer.models.convolutional.convolutional_blocks import (
    Block,
    ConvolutionalBlock,
    ConvolutionalConfig,
)
from transformer.models.layers import LayerConfig
from transformer.models.numerics import multiply, standardize
from transformer.models.rnn.recurrence import INITIALIZATIONS, LSTM, run_cell

SIZES_OF_KEYS = (1, 4, 16, 64, 256, 1024)
LENGTHS = (128, 256, 512, 1024, 2048)
WIDTH = 8  # of the layers whose reach is measured


class Saturation(NamedTuple):
    """By key size, with and without the factor 1 / sqrt(d_k); means over random queries."""

    largest: dict[str, list[float]]  # the largest weight of a query
    gradient: dict[str, list[float]]  # norm of the softmax's derivatives


def saturation(
    sizes: Sequence[int] = SIZES_OF_KEYS, num_keys: int = 16, num_queries: int = 64
) -> Saturation:
    """Measures saturation for queries and keys whose components have mean 0 and variance 1."""
    largest: dict[str, list[float]] = {"scaled": [], "not scaled": []}
    gradient: dict[str, list[float]] = {"scaled": [], "not scaled": []}
    for size in sizes:
        rng = np.random.default_rng(0)
        query_BHTK, key_BHSK = (
            jnp.asarray(rng.normal(size=(1, 1, n, size)), jnp.float32)
            for n in (num_queries, num_keys)
        )
        memory = KeyValues(key_BHSK, key_BHSK)
        everything = jnp.ones((1, num_queries, num_keys), bool)
        for name, factor in (("scaled", 1.0), ("not scaled", size**0.5)):
            _, weights_BHTS = dot_product_attention(
                query_BHTK * factor, memory, everything, return_weights=True
            )
            weights_TS = weights_BHTS[0, 0]
            scores_TS = multiply(
                "BHTK,BHSK->BHTS", query_BHTK * (factor * size**-0.5), key_BHSK, jnp.float32
            )[0, 0]
            slope_TSS = jax.vmap(jax.jacobian(jax.nn.softmax))(scores_TS)
            largest[name].append(float(weights_TS.max(axis=1).mean()))
            gradient[name].append(float(jnp.linalg.norm(slope_TSS, axis=(1, 2)).mean()))
    return Saturation(largest, gradient)


def one_hot_positions(embedded_TD: Any, table_VD: Any, positions_PD: Any, ids: Any) -> float:
    """The largest difference between the input vectors and one-hot vectors times [W_I, W_P].

    embedded: the model's embedding plus position. table: W_I, scaled by its factor.
    """
    V, P, T = len(table_VD), len(positions_PD), len(ids)
    joined_TX = np.zeros((T, V + P), np.float32)
    joined_TX[np.arange(T), ids] = 1
    joined_TX[np.arange(T), V + np.arange(T)] = 1
    product_TD = joined_TX @ np.concatenate([table_VD, positions_PD])
    return float(np.abs(product_TD - embedded_TD).max())


class Reach(NamedTuple):
    """The inputs that reach an output of a layer type, and the length of its chain of products.

    seen: for 1, 2, ... layers, whether the output at the middle depends on each input.
    waits: by sequence length, the longest chain of matrix products, each of which needs the one
    before.
    """

    seen: list[list[bool]]
    waits: dict[int, int]


def reach(length: int = 17, layers: int = 3) -> dict[str, Reach]:
    """The reach of this project's own layers, with random parameters."""
    return {
        name: Reach(
            [_seen(stack, depth, length) for depth in range(1, layers + 1)],
            {n: longest_chain(stack, layers, n) for n in (length, 2 * length)},
        )
        for name, stack in {
            "convolution": _convolutions,
            "RNN": _rnn,
            "attention": _attends,
        }.items()
    }


Stack = Callable[[jax.Array, int], jax.Array]  # inputs [B, S, D], number of layers -> outputs


def _convolutions(x_BSD: jax.Array, layers: int) -> jax.Array:
    blocks = f"{WIDTH}x3x1"
    config = ConvolutionalConfig(
        "convolutional", WIDTH, blocks, blocks, WIDTH, 1, True, False, 0.0, "float32"
    )
    for number in range(layers):
        rngs = nnx.Rngs(number)
        layer = ConvolutionalBlock(WIDTH, Block(WIDTH, 3), config, False, rngs)
        x_BSD = layer(x_BSD, jnp.ones(x_BSD.shape[:2], jnp.int32), None)
    return x_BSD


def _rnn(x_BSD: jax.Array, layers: int) -> jax.Array:
    starts_BS = jnp.zeros(x_BSD.shape[:2], bool).at[:, 0].set(True)
    for number in range(layers):
        cell = LSTM(
            WIDTH,
            WIDTH,
            biases=1,
            initialization=INITIALIZATIONS["glorot"],
            dtype=jnp.dtype("float32"),
            rngs=nnx.Rngs(number),
        )
        x_BSD = run_cell(cell, x_BSD, starts_BS)[0]
    return x_BSD


def _attends(x_BSD: jax.Array, layers: int) -> jax.Array:
    config = LayerConfig(
        family="transformer",
        **{"d_model": WIDTH, "d_ff": 2 * WIDTH, "num_heads": 2, "d_k": 0, "d_v": 0},
        **{"attention_bias": False, "dropout": 0.0, "attention_dropout": 0.0},
        **{"activation_dropout": 0.0, "activation": "gelu", "norm": "post"},
        **{"normalization": "layer_norm", "norm_epsilon": 1e-6, "dtype": "float32"},
    )
    ones_BS = jnp.ones(x_BSD.shape[:2], jnp.int32)
    for number in range(layers):
        x_BSD, _ = EncoderLayer(config, nnx.Rngs(number))(x_BSD, Mask(ones_BS, ones_BS))
    return x_BSD


def _seen(stack: Stack, depth: int, length: int) -> list[bool]:
    rng = np.random.default_rng(0)
    x_BSD = jnp.asarray(rng.normal(size=(1, length, WIDTH)), jnp.float32)

    def middle(x_BSD: jax.Array) -> jax.Array:
        return stack(x_BSD, depth)[0, length // 2].sum()

    slopes_SD = jax.grad(middle)(x_BSD)[0]
    return (np.abs(slopes_SD).max(axis=1) > 0).tolist()


def longest_chain(stack: Stack, layers: int, length: int) -> int:
    """The longest chain of dependent matrix products in the program JAX makes of a stack."""
    x_BSD = jnp.zeros((1, length, WIDTH))
    return _depth(jax.make_jaxpr(lambda x: stack(x, layers))(x_BSD).jaxpr)


def _depth(jaxpr: Any) -> int:
    depths: dict[Any, int] = {}

    def of(variables: Sequence[Any]) -> int:
        # A variable with a value is a literal. A program input has waited for nothing.
        known = [v for v in variables if not hasattr(v, "val")]
        return max((depths[v] for v in known if v in depths), default=0)

    for equation in jaxpr.eqns:
        inner = [
            getattr(x, "jaxpr", x)
            for value in equation.params.values()
            for x in (value if isinstance(value, tuple | list) else [value])
            if hasattr(getattr(x, "jaxpr", x), "eqns")
        ]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        own = times * max(map(_depth, inner), default=0)
        own += equation.primitive.name in ("dot_general", "conv_general_dilated")
        for variable in equation.outvars:
            depths[variable] = of(equation.invars) + own
    return of(jaxpr.outvars)


def change_beside(x_BTD: jax.Array, other_BTD: jax.Array, epsilon: float) -> dict[str, float]:
    """The change of the normalised vectors of x if it shares a batch with another sentence.

    Layer normalisation takes mean and variance over each vector; batch normalisation over each
    dimension, of all vectors in the batch.
    """

    def layer_norm(x_XD):
        return standardize(x_XD, epsilon)

    def batch_norm(x_XD):
        return standardize(x_XD.T, epsilon).T

    x_XD, other_XD = (x.reshape(-1, x.shape[-1]) for x in (x_BTD, other_BTD))
    both_XD = jnp.concatenate([x_XD, other_XD])
    return {
        name: float(jnp.abs(norm(both_XD)[: len(x_XD)] - norm(x_XD)).max())
        for name, norm in (("layer", layer_norm), ("batch", batch_norm))
    }


def memory_of_attention(lengths: Sequence[int] = LENGTHS) -> dict[str, list[int]]:
    """Bytes that XLA plans for attention of 8 heads and its gradient, by the length of a row."""

    def whole(query, memory, segments_BS):
        mask = Mask(segments_BS, segments_BS)
        return dot_product_attention(query, memory, mask.dense())[0].sum()

    def in_blocks(query, memory, segments_BS):
        return attention(query, memory, Mask(segments_BS, segments_BS))[0].sum()

    found: dict[str, list[int]] = {}
    for name, function in (("all scores at once", whole), ("in blocks of queries", in_blocks)):
        for length in lengths:
            vectors = jax.ShapeDtypeStruct((1, 8, length, 64), jnp.float32)
            segments = jax.ShapeDtypeStruct((1, length), jnp.int32)
            step = jax.jit(jax.grad(function, argnums=(0, 1)))
            compiled = step.lower(vectors, KeyValues(vectors, vectors), segments).compile()
            bytes_needed = compiled.memory_analysis().temp_size_in_bytes
            found.setdefault(name, []).append(bytes_needed)
    return found
