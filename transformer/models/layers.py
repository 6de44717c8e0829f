"""The small parts: linear layer, embedding, feed-forward network, add & norm."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models import fused_norm
from transformer.models.numerics import (
    DropoutRngs,
    as_operand,
    at_least_float32,
    dropout,
    multiply,
    row_keys,
    standardize,
    unmerged,
)
from transformer.models.weight_layout import WeightLayout, multiply_int8, quantized

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # its tanh form, as of BERT's code
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),  # by the error function
    "elu": jax.nn.elu,
    "swish": jax.nn.swish,
}

NORMALIZATIONS = "layer_norm", "rms_norm"

# Glorot: the paper is silent; this is Tensor2Tensor's choice.
kernel_init = nnx.initializers.xavier_uniform()


class Linear(nnx.Module):
    """x W + b, or x W. The parameters are float32, the result has type `dtype`."""

    scale_1O: nnx.Param | None = None  # of a kernel in int8

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        use_bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        takes_int8: bool = True,
    ):
        """takes_int8: whether `WeightLayout.INT8` applies."""
        self.takes_int8 = takes_int8
        self.kernel = nnx.Param(kernel_init(rngs.params(), (d_in, d_out), jnp.float32))
        if use_bias:
            self.bias = nnx.Param(jnp.zeros(d_out, jnp.float32))
        self.use_bias = use_bias
        self.dtype = dtype
        self.for_few_rows = False

    def arrange(self, weight_layout: WeightLayout) -> None:
        """Keeps the kernel as products take it; see `FunctionalModel.arranged`."""
        if weight_layout is WeightLayout.INT8 and self.takes_int8:
            kernel_IO, scale_1O = quantized(self.kernel[...], axis=0)
            self.kernel, self.scale_1O = nnx.Param(kernel_IO), nnx.Param(scale_1O)
            return
        few_rows = weight_layout is WeightLayout.FEW_ROWS
        self.for_few_rows = few_rows and self.dtype == jnp.float32
        kernel_IO = as_operand(self.kernel[...], self.dtype)
        self.kernel = nnx.Param(kernel_IO.T if self.for_few_rows else kernel_IO)

    def __call__(self, x_BTI: jax.Array, apart: bool = False) -> jax.Array:
        """apart: for one of several products of x, as of keys and values; see `unmerged`."""
        if self.scale_1O is not None:
            y_BTO = multiply_int8(x_BTI, self.kernel[...], self.scale_1O[...])
        elif self.for_few_rows:
            y_OBT = multiply("OI,BTI->OBT", self.kernel[...], x_BTI, self.dtype)
            y_BTO = y_OBT.transpose(1, 2, 0)
        else:
            kernel_IO = self.kernel[...]
            if apart:
                x_BTI, kernel_IO = unmerged(x_BTI, kernel_IO)
            y_BTO = multiply("BTI,IO->BTO", x_BTI, kernel_IO, self.dtype)
        if self.use_bias:
            y_BTO += self.bias[...][None, None]
        return y_BTO.astype(self.dtype)


class Embedding(nnx.Module):
    """One matrix for the input embedding and, where shared, the output layer (Section 3.4)."""

    output_DV: nnx.Param | None = None  # the matrix as logits take it, where it is arranged
    scale_1V: nnx.Param | None = None  # of output_DV in int8

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        scale: float | None = None,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        """scale: what embeddings are multiplied by; None for the paper's sqrt(d_model)."""
        init = nnx.initializers.normal(stddev=d_model**-0.5)
        self.table_VD = nnx.Param(init(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.scale = d_model**0.5 if scale is None else scale
        self.dtype = dtype
        self.for_few_rows = False

    def arrange(self, weight_layout: WeightLayout) -> None:
        """Keeps the matrix as products take it; see `FunctionalModel.arranged`."""
        if weight_layout is WeightLayout.INT8:
            output_DV, scale_1V = quantized(self.table_VD[...].T, axis=0)
            self.output_DV, self.scale_1V = nnx.Param(output_DV), nnx.Param(scale_1V)
            return
        few_rows = weight_layout is WeightLayout.FEW_ROWS
        self.for_few_rows = few_rows and self.dtype == jnp.float32  # it is the first operand
        if self.dtype == jnp.bfloat16:
            self.output_DV = nnx.Param(as_operand(self.table_VD[...], self.dtype).T)

    @jax.named_scope("embedding")
    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Rows of the matrix, scaled. Returns [B, T, D]."""
        x_BTD = self.table_VD[...][tokens_BT].astype(self.dtype)
        return x_BTD * jnp.asarray(self.scale, self.dtype)

    @jax.named_scope("logits")
    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """The linear transformation before the softmax, not scaled. Returns [B, T, V]."""
        if self.scale_1V is not None:
            return multiply_int8(x_BTD, self.output_DV[...], self.scale_1V[...])
        if self.for_few_rows:
            logits_VBT = multiply("VD,BTD->VBT", self.table_VD[...], x_BTD, self.dtype)
            return logits_VBT.transpose(1, 2, 0)
        if self.output_DV is not None:
            return multiply("BTD,DV->BTV", x_BTD, self.output_DV[...], self.dtype)
        return multiply("BTD,VD->BTV", x_BTD, self.table_VD[...], self.dtype)


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
        self.hidden = Linear(d_model, d_ff, use_bias=True, dtype=dtype, rngs=rngs)
        self.output = Linear(d_ff, d_model, use_bias=True, dtype=dtype, rngs=rngs)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def __call__(self, x_BTD: jax.Array, rngs: DropoutRngs | None = None) -> jax.Array:
        x_BTF = ACTIVATIONS[self.activation](self.hidden(x_BTD))
        return self.output(dropout(x_BTF, self.dropout_rate, rngs))


class Normalization(nnx.Module):
    """layer_norm (Ba et al. 2016): biased variance, scale and bias. Or rms_norm (Zhang and
    Sennrich 2019): no mean is subtracted and no bias added. Statistics are float32.
    """

    def __init__(self, d_model: int, *, form: str, epsilon: float, dtype: jnp.dtype):
        self.scale = nnx.Param(jnp.ones(d_model, jnp.float32))
        if form == "layer_norm":
            self.bias = nnx.Param(jnp.zeros(d_model, jnp.float32))
        self.form = form
        self.epsilon = epsilon
        self.dtype = dtype

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = x_BTD.astype(at_least_float32(x_BTD.dtype))
        scale_11D = self.scale[...][None, None]
        if self.form == "layer_norm":
            y_BTD = standardize(x_BTD, self.epsilon) * scale_11D + self.bias[...][None, None]
        else:
            square_BT1 = jnp.mean(x_BTD**2, axis=-1, keepdims=True)
            y_BTD = x_BTD * jax.lax.rsqrt(square_BT1 + self.epsilon) * scale_11D
        return y_BTD.astype(self.dtype)


class AddAndNorm(nnx.Module):
    """Dropout, residual connection and normalisation around one sublayer.

    Post-LN, the paper's (Sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    Pre-LN: x + Dropout(Sublayer(LayerNorm(x))). Used as

        y = sublayer(add_and_norm.before(x))
        x = add_and_norm.after(x, y, rngs)
    """

    def __init__(
        self, norm: nnx.Module, *, norm_first: bool, dropout_rate: float, fused: bool = False
    ):
        """fused: by the kernel of fused_norm.py, where it can."""
        self.norm = norm
        self.norm_first = norm_first
        self.dropout_rate = dropout_rate
        takes = not norm_first and norm.form == "layer_norm"
        self.fused = fused and takes and fused_norm.fits(norm.scale.shape[0])

    @jax.named_scope("add_and_norm")
    def before(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD) if self.norm_first else x_BTD

    @jax.named_scope("add_and_norm")
    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, rngs: DropoutRngs | None) -> jax.Array:
        if self.fused:
            drops = rngs is not None and self.dropout_rate > 0
            keys_B = row_keys(rngs, x_BTD.shape[0]) if drops else None
            scale_D, bias_D = self.norm.scale[...], self.norm.bias[...]
            rates = self.dropout_rate, self.norm.epsilon
            return fused_norm.add_and_norm(x_BTD, y_BTD, keys_B, scale_D, bias_D, *rates)
        x_BTD = x_BTD + dropout(y_BTD, self.dropout_rate, rngs)
        return x_BTD if self.norm_first else self.norm(x_BTD)
