"""Scaled dot-product and multi-head attention (Section 3.2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.attention_blocks import in_blocks
from transformer.models.cache import Places, attend
from transformer.models.layers import Linear
from transformer.models.masks import Mask
from transformer.models.numerics import DropoutRngs, dropout, multiply

# The most queries whose scores are in memory at once. Rows of no more than that are one block,
# which saves the second softmax. What longer rows gain is in docs/performance.md.
MAX_QUERIES = 256


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
    return_weights: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """softmax(Q K^T / sqrt(d_k)) V, Equation 1. Returns [B, H, T, U] and the weights.

    The weights, [B, H, T, S], are those before dropout, in at least float32, and 0 where the mask
    is False; None unless `return_weights`.

    The mask may have size 1 in place of B or T. A query that may attend to nothing gets the
    mean of all values: finite, and never read, since only padding is masked so.
    """
    dtype = query_BHTK.dtype
    query_BHTK = query_BHTK * jnp.asarray(query_BHTK.shape[-1] ** -0.5, dtype)
    scores_BHTS = multiply("BHTK,BHSK->BHTS", query_BHTK, memory.key_BHSK, dtype)
    # The paper's -inf would make NaN of a row that is masked whole.
    scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, jnp.finfo(scores_BHTS.dtype).min)
    weights_BHTS = jax.nn.softmax(scores_BHTS, axis=-1)
    dropped_BHTS = dropout(weights_BHTS.astype(dtype), dropout_rate, rngs)
    y_BHTU = multiply("BHTS,BHSU->BHTU", dropped_BHTS, memory.value_BHSU, dtype)
    if not return_weights:
        return y_BHTU.astype(dtype), None
    return y_BHTU.astype(dtype), jnp.where(mask_BTS[:, None], weights_BHTS, 0)


def attention(
    query_BHTK: jax.Array,
    memory: KeysValues,
    mask: Mask,
    dropout_rate: float = 0.0,
    rngs: DropoutRngs | None = None,
    return_weights: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """`dot_product_attention` in memory linear in T + S, unless the weights are asked for.

    More than MAX_QUERIES are taken in blocks: attention_blocks.py.
    """
    if query_BHTK.shape[2] <= MAX_QUERIES:
        mask_BTS = mask.dense()
        return dot_product_attention(
            query_BHTK, memory, mask_BTS, dropout_rate, rngs, return_weights
        )

    return in_blocks(
        dot_product_attention,
        MAX_QUERIES,
        query_BHTK,
        memory,
        mask,
        dropout_rate,
        rngs,
        return_weights,
    )


class MultiHeadAttention(nnx.Module):
    """Multi-head attention (Section 3.2.2).

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
        use_bias: bool = False,
        dropout_rate: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        """use_bias: of all four projections; the paper has none, BERT does."""

        def linear(d_in, d_out):
            return Linear(d_in, d_out, use_bias=use_bias, dtype=dtype, rngs=rngs)

        self.query = linear(d_model, num_heads * d_k)
        self.key = linear(d_model, num_heads * d_k)
        self.value = linear(d_model, num_heads * d_v)
        self.output = linear(num_heads * d_v, d_model)
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate

    def keys_values(self, x_BSD: jax.Array) -> KeysValues:
        """The keys and values of the vectors attended to."""
        return KeysValues(self._split_heads(self.key(x_BSD)), self._split_heads(self.value(x_BSD)))

    def __call__(
        self,
        x_BTD: jax.Array,
        memory: KeysValues,
        mask: Mask,
        rngs: DropoutRngs | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from x to the given keys and values. Returns [B, T, D] and the weights."""
        query_BHTK = self._split_heads(self.query(x_BTD))
        y_BHTU, weights_BHTS = attention(
            query_BHTK, memory, mask, self.dropout_rate, rngs, return_weights
        )
        y_BTX = y_BHTU.swapaxes(1, 2).reshape(*x_BTD.shape[:2], -1)
        return self.output(y_BTX), weights_BHTS

    def places(self, x_BSD: jax.Array) -> Places:
        """`keys_values`, as a decoding step takes them."""
        keys_values = self.keys_values(x_BSD)
        return Places(keys_values.key_BHSK.swapaxes(2, 3), keys_values.value_BHSU)

    def step(
        self, x_BMD: jax.Array, places: Places, mask_BMX: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Attends from the newest token of each hypothesis. Returns [B, M, D] and the weights."""
        y_BHMU, weights_BHMX = attend(self._split_heads(self.query(x_BMD)), places, mask_BMX)
        return self.output(y_BHMU.swapaxes(1, 2).reshape(*x_BMD.shape[:2], -1)), weights_BHMX

    def _split_heads(self, x_BTX: jax.Array) -> jax.Array:
        return x_BTX.reshape(*x_BTX.shape[:2], self.num_heads, -1).swapaxes(1, 2)
