"""`top_k` and `log_softmax`, faster than JAX's own for very many numbers."""

import jax
import jax.numpy as jnp

BLOCK = 128


def top_k(x_BX: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Same as `jax.lax.top_k`, including ties by index; faster where X is large.

    The k largest numbers are in the k blocks with the largest maxima. So only these are sorted.
    """
    B, X = x_BX.shape
    if k * BLOCK * 2 >= X:
        return jax.lax.top_k(x_BX, k)
    blocks_BYZ = jnp.pad(x_BX, ((0, 0), (0, -X % BLOCK)), constant_values=-jnp.inf)
    blocks_BYZ = blocks_BYZ.reshape(B, -1, BLOCK)
    _, chosen_Bk = jax.lax.top_k(blocks_BYZ.max(axis=-1), k)
    # Sorted, so that of equal numbers the first one wins.
    chosen_Bk = jnp.sort(chosen_Bk, axis=-1)
    place_BkZ = chosen_Bk[:, :, None] * BLOCK + jnp.arange(BLOCK)[None, None]
    place_BC = place_BkZ.reshape(B, -1)
    # Gathered from x: to gather from the blocks, XLA on the CPU would write all of them to memory.
    values_BC = jnp.take_along_axis(x_BX, place_BC, axis=1, mode="clip")
    best_Bk, index_Bk = jax.lax.top_k(jnp.where(place_BC < X, values_BC, -jnp.inf), k)
    return best_Bk, jnp.take_along_axis(place_BC, index_Bk, axis=1)


def log_softmax(logits_NV: jax.Array) -> jax.Array:
    """Same as `jax.nn.log_softmax`, in two passes over the logits."""
    # Otherwise XLA on the CPU computes the logits along with their maxima, more slowly.
    logits_NV = jax.lax.optimization_barrier(logits_NV)
    max_N = logits_NV.max(axis=-1)
    sum_N = jnp.sum(jnp.exp(logits_NV - max_N[:, None]), axis=-1)
    return logits_NV - (max_N + jnp.log(sum_N))[:, None]
