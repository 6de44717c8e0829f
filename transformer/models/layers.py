"""The small parts: linear layer, embedding, feed-forward network, add & norm; and their config."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models import fused_norm
from transformer.models.family import ModelSection
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
from transformer.system.errors import UserError, check_choice, check_range, setting

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # the tanh form, as in BERT's code
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),  # with the error function
    "elu": jax.nn.elu,
    "swish": jax.nn.swish,
}

NORMALIZATIONS = "layer_norm", "rms_norm"
MOST_LAYERS = 1000  # each is built and compiled by itself, which takes time


def check_dtype(config: ModelSection) -> None:
    """Raises UserError for a model.dtype that does not exist here."""
    check_choice(config, "model", "dtype", ("float32", "bfloat16", "float64"))
    if config.dtype == "float64" and not jax.config.jax_enable_x64:
        raise UserError("model.dtype is 'float64', which JAX has only with JAX_ENABLE_X64=1")


# Glorot, as in Tensor2Tensor; the paper does not say.
kernel_init = nnx.initializers.xavier_uniform()


@dataclasses.dataclass(frozen=True)
class LayerConfig(ModelSection):
    """The fields of the model section that these layers read; see configs/base.py."""

    d_model: int
    d_ff: int
    num_heads: int
    d_k: int
    d_v: int
    attention_bias: bool
    dropout: float = setting(architecture=False)
    attention_dropout: float = setting(architecture=False)
    activation_dropout: float = setting(architecture=False)
    activation: str
    norm: str
    normalization: str
    norm_epsilon: float
    dtype: str
    kernels: str = setting(
        may_change=True, architecture=False, default="plain"
    )  # work directories of earlier commits lack it
    rematerialize: bool = setting(may_change=True, architecture=False, default=False)  # same

    def __post_init__(self):
        check_range(self, "model", "d_model d_ff num_heads", 1)
        check_range(self, "model", "d_k d_v", 0)
        check_range(self, "model", "dropout attention_dropout activation_dropout", 0, 1)
        check_choice(self, "model", "activation", ACTIVATIONS)
        self.check_kernels()
        check_choice(self, "model", "norm", ("post", "pre"))
        check_choice(self, "model", "normalization", NORMALIZATIONS)
        check_range(self, "model", "norm_epsilon", 1e-12, 1)
        check_dtype(self)
        if not (self.d_k and self.d_v) and self.d_model % self.num_heads:
            raise UserError(
                f"model.d_model = {self.d_model} is not divisible by model.num_heads = "
                f"{self.num_heads}; change one of them, or set model.d_k and model.d_v"
            )

    @property
    def width(self) -> int:
        return self.d_model

    @property
    def key_size(self) -> int:
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        return self.d_v or self.d_model // self.num_heads

    @property
    def attention_pair(self) -> int:
        """The multiplications of attention for a pair of tokens: score and weighted sum."""
        return self.num_heads * (self.key_size + self.value_size)

    @property
    def attention_weights(self) -> int:
        """The weights that multiply each token: query and key, value and output."""
        return 2 * self.attention_pair * self.d_model


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

    def lay_out(self, weight_layout: WeightLayout) -> None:
        """Keeps the kernel as products take it; see `FunctionalModel.in_layout`."""
        if weight_layout is WeightLayout.INT8 and self.takes_int8:
            kernel_IO, scale_1O = quantized(self.kernel[...], axis=0)
            self.kernel, self.scale_1O = nnx.Param(kernel_IO), nnx.Param(scale_1O)
            return
        few_rows = weight_layout is WeightLayout.FEW_ROWS
        self.for_few_rows = few_rows and self.dtype == jnp.float32
        kernel_IO = as_operand(self.kernel[...], self.dtype)
        self.kernel = nnx.Param(kernel_IO.T if self.for_few_rows else kernel_IO)

    def __call__(self, x_BTI: jax.Array, apart: bool = False) -> jax.Array:
        """apart: set if x has several products, as for keys and values; see `unmerged`."""
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

    output_DV: nnx.Param | None = None  # the matrix for the logits, once laid out
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
        """scale: the factor of embeddings; None for the paper's sqrt(d_model)."""
        init = nnx.initializers.normal(stddev=d_model**-0.5)
        self.table_VD = nnx.Param(init(rngs.params(), (vocab_size, d_model), jnp.float32))
        self.scale = d_model**0.5 if scale is None else scale
        self.dtype = dtype
        self.for_few_rows = False

    def lay_out(self, weight_layout: WeightLayout) -> None:
        """Keeps the matrix as products take it; see `FunctionalModel.in_layout`."""
        if weight_layout is WeightLayout.INT8:
            output_DV, scale_1V = quantized(self.table_VD[...].T, axis=0)
            self.output_DV, self.scale_1V = nnx.Param(output_DV), nnx.Param(scale_1V)
            return
        few_rows = weight_layout is WeightLayout.FEW_ROWS
        self.for_few_rows = few_rows and self.dtype == jnp.float32  # then the first operand
        if self.dtype == jnp.bfloat16:
            self.output_DV = nnx.Param(as_operand(self.table_VD[...], self.dtype).T)

    @jax.named_scope("embedding")
    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Rows of the matrix, scaled. Returns [B, T, D]."""
        x_BTD = self.table_VD[...][tokens_BT].astype(self.dtype)
        return x_BTD * jnp.asarray(self.scale, self.dtype)

    @jax.named_scope("logits")
    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """The linear transformation before the softmax, unscaled. Returns [B, T, V]."""
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

    def __init__(self, config: LayerConfig, rngs: nnx.Rngs):
        D, F, dtype = config.d_model, config.d_ff, jnp.dtype(config.dtype)
        self.hidden = Linear(D, F, use_bias=True, dtype=dtype, rngs=rngs)
        self.output = Linear(F, D, use_bias=True, dtype=dtype, rngs=rngs)
        self.activation = config.activation
        self.dropout_rate = config.activation_dropout

    def __call__(self, x_BTD: jax.Array, rngs: DropoutRngs | None = None) -> jax.Array:
        x_BTF = ACTIVATIONS[self.activation](self.hidden(x_BTD))
        return self.output(dropout(x_BTF, self.dropout_rate, rngs))


class Normalization(nnx.Module):
    """Normalisation of each vector. Statistics are float32.

    layer_norm (Ba et al. 2016): biased variance, scale and bias.
    rms_norm (Zhang and Sennrich 2019): no mean is subtracted and no bias added.
    """

    def __init__(self, config: LayerConfig):
        self.scale = nnx.Param(jnp.ones(config.d_model, jnp.float32))
        if config.normalization == "layer_norm":
            self.bias = nnx.Param(jnp.zeros(config.d_model, jnp.float32))
        self.form = config.normalization
        self.epsilon = config.norm_epsilon
        self.dtype = jnp.dtype(config.dtype)

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

    def __init__(self, config: LayerConfig):
        self.norm = Normalization(config)
        self.norm_first = config.norm == "pre"
        self.dropout_rate = config.dropout
        # True if the kernel of fused_norm.py applies.
        takes = not self.norm_first and config.normalization == "layer_norm"
        self.fused = config.uses("triton_norm") and takes and fused_norm.fits(config.d_model)

    @jax.named_scope("add_and_norm")
    def before(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD) if self.norm_first else x_BTD

    @jax.named_scope("add_and_norm")
    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, rngs: DropoutRngs | None) -> jax.Array:
        if self.fused:
            drops = rngs is not None and self.dropout_rate > 0
            keys_B = row_keys(rngs, x_BTD.shape[0]) if drops else None
            scale_D, bias_D = self.norm.scale[...], self.norm.bias[...]
            settings = fused_norm.Settings(self.dropout_rate, self.norm.epsilon)
            return fused_norm.add_and_norm(x_BTD, y_BTD, keys_B, scale_D, bias_D, settings)
        x_BTD = x_BTD + dropout(y_BTD, self.dropout_rate, rngs)
        return x_BTD if self.norm_first else self.norm(x_BTD)
