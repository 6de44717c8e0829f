"""The lecture's arguments for the Transformer: scaling, positions, norms."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.attention import KeyValues, dot_product_attention
from transformer.models.numerics import multiply, standardize

SIZES_OF_KEYS = (1, 4, 16, 64, 256, 1024)


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
