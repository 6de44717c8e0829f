"""Scaled dot-product and multi-head attention (Section 3.2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.layers import DropoutRngs, Linear, dropout, multiply


class KeysValues(NamedTuple):
    """What a query attends to. Heads come before length: that is the fast cache layout."""

    key_BHSK: jax.Array
    value_BHSU: jax.Array


@jax.named_scope("attention")
def dot_product_attention(
    query_BHTK: jax.Array,
    memory: KeysValues,
    mask_BTS: jax.Array,
    dropout_rate: float = 0.0,
    rngs: DropoutRngs | None = None,
) -> jax.Array:
    """softmax(Q K^T / sqrt(d_k)) V, Equation 1. Returns [B, H, T, U].

    The mask may have size 1 in place of B or T. A query that may attend to nothing gets the
    mean of all values: finite, and never read, since only padding is masked so.
    """
    dtype = query_BHTK.dtype
    query_BHTK = query_BHTK * jnp.asarray(query_BHTK.shape[-1] ** -0.5, dtype)
    scores_BHTS = multiply("BHTK,BHSK->BHTS", query_BHTK, memory.key_BHSK, dtype)
    # The paper's -inf would make NaN of a row that is masked whole.
    scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, jnp.finfo(scores_BHTS.dtype).min)
    weights_BHTS = jax.nn.softmax(scores_BHTS, axis=-1).astype(dtype)
    weights_BHTS = dropout(weights_BHTS, dropout_rate, rngs)
    y_BHTU = multiply("BHTS,BHSU->BHTU", weights_BHTS, memory.value_BHSU, dtype)
    return y_BHTU.astype(dtype)


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (Section 3.2.2); the projections have no biases.

    Keys and values are computed apart from the attention itself, so that a decoder computes
    those of the memory once a sentence and keeps those of earlier tokens in its cache.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        d_k: int,
        d_v: int,
        dropout_rate: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.query = Linear(d_model, num_heads * d_k, use_bias=False, dtype=dtype, rngs=rngs)
        self.key = Linear(d_model, num_heads * d_k, use_bias=False, dtype=dtype, rngs=rngs)
        self.value = Linear(d_model, num_heads * d_v, use_bias=False, dtype=dtype, rngs=rngs)
        self.output = Linear(num_heads * d_v, d_model, use_bias=False, dtype=dtype, rngs=rngs)
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate

    def keys_values(self, x_BSD: jax.Array) -> KeysValues:
        """The keys and values of the vectors attended to."""
        return KeysValues(self._split_heads(self.key(x_BSD)), self._split_heads(self.value(x_BSD)))

    def __call__(
        self,
        x_BTD: jax.Array,
        memory: KeysValues,
        mask_BTS: jax.Array,
        rngs: DropoutRngs | None = None,
    ) -> jax.Array:
        """Attends from x to the given keys and values. Returns [B, T, D]."""
        query_BHTK = self._split_heads(self.query(x_BTD))
        y_BHTU = dot_product_attention(query_BHTK, memory, mask_BTS, self.dropout_rate, rngs)
        return self.output(y_BHTU.swapaxes(1, 2).reshape(*x_BTD.shape[:2], -1))

    def _split_heads(self, x_BTX: jax.Array) -> jax.Array:
        return x_BTX.reshape(*x_BTX.shape[:2], self.num_heads, -1).swapaxes(1, 2)
