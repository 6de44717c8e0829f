"""The small parts: dropout, embedding, feed-forward network, add & norm."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
    "swish": jax.nn.swish,
}

# Glorot: the paper is silent; this is Tensor2Tensor's choice.
kernel_init = nnx.initializers.xavier_uniform()


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


@jax.named_scope("dropout")
def dropout(x: jax.Array, rate: float, rngs: DropoutRngs | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    `rngs=None` means evaluation: x is returned as it is. The rate is rounded to 1 / 65536.
    The first axis of x is the batch.
    """
    if rngs is None or rate == 0:
        return x
    keys = rngs.dropout()
    keys_B = keys if keys.ndim else jax.random.split(keys, x.shape[0])
    # Two 16-bit draws from each 32-bit word: random bits are what dropout costs.
    row_shape = (*x.shape[1:-1], -(-x.shape[-1] // 2))
    words = jax.vmap(lambda key: jax.random.bits(key, row_shape))(keys_B)
    draws = jax.lax.bitcast_convert_type(words, jnp.uint16)
    draws = draws.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    threshold = min(round(rate * 65536), 65535)
    return jnp.where(draws >= threshold, x * (65536 / (65536 - threshold)), 0).astype(x.dtype)


def linear(d_in: int, d_out: int, *, use_bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs):
    return nnx.Linear(
        d_in, d_out, use_bias=use_bias, dtype=dtype, kernel_init=kernel_init, rngs=rngs
    )


class Embedding(nnx.Module):
    """One matrix for the input embedding and, where shared, the output layer (Section 3.4)."""

    def __init__(self, vocab_size: int, d_model: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        init = nnx.initializers.normal(stddev=d_model**-0.5)
        self.table_VD = nnx.Param(init(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.dtype = dtype

    @jax.named_scope("embedding")
    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Rows of the matrix, multiplied by sqrt(d_model). Returns [B, T, D]."""
        x_BTD = self.table_VD[...][tokens_BT].astype(self.dtype)
        return x_BTD * jnp.asarray(x_BTD.shape[-1] ** 0.5, self.dtype)

    @jax.named_scope("logits")
    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """The linear transformation before the softmax, not scaled. Returns [B, T, V]."""
        return jnp.einsum(
            "BTD,VD->BTV",
            x_BTD,
            self.table_VD[...].astype(self.dtype),
            preferred_element_type=at_least_float32(self.dtype),
        )


class FeedForward(nnx.Module):
    """Position-wise feed-forward network, Equation 2, with a choice of activation."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str,
        dropout_rate: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.hidden = linear(d_model, d_ff, use_bias=True, dtype=dtype, rngs=rngs)
        self.output = linear(d_ff, d_model, use_bias=True, dtype=dtype, rngs=rngs)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def __call__(self, x_BTD: jax.Array, rngs: DropoutRngs | None = None) -> jax.Array:
        x_BTF = ACTIVATIONS[self.activation](self.hidden(x_BTD))
        return self.output(dropout(x_BTF, self.dropout_rate, rngs))


class AddAndNorm(nnx.Module):
    """Dropout, residual connection and layer normalisation around one sublayer.

    Post-LN, the paper's (Sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    Pre-LN: x + Dropout(Sublayer(LayerNorm(x))). Used as

        y = sublayer(add_and_norm.before(x))
        x = add_and_norm.after(x, y, rngs)
    """

    def __init__(
        self, d_model: int, *, norm: str, dropout_rate: float, dtype: jnp.dtype, rngs: nnx.Rngs
    ):
        self.norm = layer_norm(d_model, dtype=dtype, rngs=rngs)
        self.norm_first = norm == "pre"
        self.dropout_rate = dropout_rate

    @jax.named_scope("add_and_norm")
    def before(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD) if self.norm_first else x_BTD

    @jax.named_scope("add_and_norm")
    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, rngs: DropoutRngs | None) -> jax.Array:
        x_BTD = x_BTD + dropout(y_BTD, self.dropout_rate, rngs)
        return x_BTD if self.norm_first else self.norm(x_BTD)


def layer_norm(d_model: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer normalisation: biased variance, scale and bias; statistics in float32."""
    return nnx.LayerNorm(d_model, epsilon=1e-6, dtype=dtype, rngs=rngs)
