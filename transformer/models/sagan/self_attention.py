"""Self-attention over the positions of an image (Zhang et al. 2018, arXiv 1805.08318).

The letters are those of spectral.py.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import multiply
from transformer.models.sagan.spectral import SpectralConv

# By form: the divisors of the channels for keys and queries, and for values; and whether keys and
# values are the maxima of two by two positions. `paper` is Section 3 of the paper; `released` is
# the authors' published code, a form that the paper does not mention.
FORMS = {"paper": (8, 8, False), "released": (8, 2, True)}


class ImageAttention(nnx.Module):
    """y = gamma * o + x, Equations 1 to 3. gamma is initially 0, so that y = x."""

    def __init__(self, channels: int, form: str, rngs: nnx.Rngs, *, dtype: jnp.dtype):
        narrow, wide, self.pooled = FORMS[form]
        self.dtype = dtype

        def conv(I: int, O: int) -> SpectralConv:  # noqa: E741
            return SpectralConv(1, I, O, rngs, dtype=dtype, bias=False)

        self.key = conv(channels, channels // narrow)  # f; theta and phi in the released code
        self.query = conv(channels, channels // narrow)  # g
        self.value = conv(channels, channels // wide)  # h
        self.output = conv(channels // wide, channels)  # v
        self.gamma = nnx.Param(jnp.zeros((), jnp.float32))

    def __call__(self, x_BHWC: jax.Array, update: bool) -> jax.Array:
        B, H, W, _ = x_BHWC.shape
        weights_BPQ = self.weights(x_BHWC, update)
        values = self.keys(self.value(x_BHWC, update))
        values_BQC = values.reshape(B, -1, values.shape[-1])
        o_BPC = multiply("BPQ,BQC->BPC", weights_BPQ, values_BQC, self.dtype)
        o_BHWC = self.output(o_BPC.reshape(B, H, W, -1), update)
        return self.gamma[...].astype(o_BHWC.dtype).reshape(1, 1, 1, 1) * o_BHWC + x_BHWC

    def weights(self, x_BHWC: jax.Array, update: bool) -> jax.Array:
        """Attention weights [B, P, Q]; sums over Q are 1. No division by sqrt(d)."""
        B, narrow = x_BHWC.shape[0], self.key.kernel.shape[-1]
        queries_BPC = self.query(x_BHWC, update).reshape(B, -1, narrow)
        keys_BQC = self.keys(self.key(x_BHWC, update)).reshape(B, -1, narrow)
        scores_BPQ = multiply("BPC,BQC->BPQ", queries_BPC, keys_BQC, self.dtype)
        return jax.nn.softmax(scores_BPQ, axis=-1)

    def keys(self, x_BHWC: jax.Array) -> jax.Array:
        """The positions attended to: all, or the maxima of two by two."""
        if not self.pooled:
            return x_BHWC
        x = jnp.maximum(x_BHWC[:, ::2], x_BHWC[:, 1::2])
        return jnp.maximum(x[:, :, ::2], x[:, :, 1::2])
