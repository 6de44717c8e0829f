"""Decoding step by step, as a search does it: the same for every family."""

import jax
import jax.numpy as jnp


def stepwise(bound, src_BS, tokens_NT):
    """The logits [N, T, V] after each token, N / B hypotheses a sentence; and the cache.

    After each step the hypotheses of a sentence change places, as a search would let them.
    """
    B, (N, T) = len(src_BS), tokens_NT.shape
    other_N = jnp.arange(N).reshape(B, -1)[:, ::-1].reshape(-1)
    is_odd_T1 = (jnp.arange(T) % 2 == 1)[:, None]
    cache = bound.init_cache(bound.encode(src_BS), src_BS, N // B, T)

    def step(cache, tokens_N):
        logits_NV, cache = bound.decode_step(tokens_N, cache)
        moved = jax.tree.map(lambda x: x[other_N], cache["hypothesis"])
        return cache | {"hypothesis": moved}, logits_NV

    tokens_TN = jnp.asarray(tokens_NT).T
    tokens_TN = jnp.where(is_odd_T1, tokens_TN[:, other_N], tokens_TN)
    cache, logits_TNV = jax.lax.scan(step, cache, tokens_TN)
    logits_TNV = jnp.where(is_odd_T1[..., None], logits_TNV[:, other_N], logits_TNV)
    return logits_TNV.swapaxes(0, 1), cache
