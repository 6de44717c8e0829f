"""The small parts: linear layer, embedding, feed-forward network, add & norm; and their config."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

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
from transformer.models.positions import KINDS
from transformer.models.weight_layout import WeightLayout, multiply_int8, quantized
from transformer.system.errors import UserError, check_choice, check_range, setting

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # the tanh form, as in BERT's code
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),  # with the error function
    "elu": jax.nn.elu,
    "swish": jax.nn.swish,
}

# Of gated feed-forward networks.
GATES = {
    "glu": jax.nn.sigmoid,
    "reglu": jax.nn.relu,
    "geglu": jax.nn.gelu,  # the tanh form
    "swiglu": jax.nn.swish,
}
NORMS = "post", "pre", "sandwich", "deepnorm", "rezero"
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
    # Work directories of earlier commits lack these.
    positions: str = setting(default="sinusoidal")
    max_distance: int = setting(default=0)
    num_key_value_heads: int = setting(default=0)
    qk_norm: bool = setting(default=False)
    logit_soft_cap: float = setting(default=0.0)
    feed_forward: str = setting(default="plain")
    feed_forward_bias: bool = setting(default=True)
    kernels: str = setting(may_change=True, architecture=False, default="plain")
    rematerialize: bool = setting(may_change=True, architecture=False, default=False)

    # Of a family; fairseq's are for models from elsewhere, which are Transformers.
    position_kinds = tuple(kind for kind in KINDS if kind != "fairseq")

    def __post_init__(self):
        check_range(self, "model", "d_model d_ff num_heads", 1)
        check_range(self, "model", "d_k d_v num_key_value_heads max_distance logit_soft_cap", 0)
        check_range(self, "model", "dropout attention_dropout activation_dropout", 0, 1)
        check_choice(self, "model", "activation", ACTIVATIONS)
        self.check_kernels()
        check_choice(self, "model", "norm", NORMS)
        check_choice(self, "model", "feed_forward", ("plain", *GATES))
        check_choice(self, "model", "normalization", NORMALIZATIONS)
        check_range(self, "model", "norm_epsilon", 1e-12, 1)
        check_dtype(self)
        if not (self.d_k and self.d_v) and self.d_model % self.num_heads:
            raise UserError(
                f"model.d_model = {self.d_model} is not divisible by model.num_heads = "
                f"{self.num_heads}; change one of them, or set model.d_k and model.d_v"
            )
        if self.num_heads % self.key_value_heads:
            raise UserError(
                f"model.num_heads = {self.num_heads} is not divisible by "
                f"model.num_key_value_heads = {self.num_key_value_heads}; change one of them"
            )
        check_choice(self, "model", "positions", self.position_kinds)
        KINDS[self.positions].check(self)

    def check_without(self, values: Mapping[str, Collection[Any]], what: str) -> None:
        """Raises UserError unless each field has one of its values, with which `what` can do."""
        for field, known in values.items():
            if getattr(self, field) not in known:
                raise UserError(
                    f"model.{field} is {getattr(self, field)!r}, which {what} cannot have; it must "
                    f"be {' or '.join(map(repr, known))}"
                )

    @property
    def depths(self) -> tuple[int, int]:
        """The numbers of layers of encoder and decoder; 0: there is none."""
        raise NotImplementedError

    def deepnorm(self, causal: bool) -> tuple[float, float]:
        """DeepNorm's alpha and beta of the layers of a decoder (`causal`) or of an encoder.

        Wang et al. 2022, DeepNet, arXiv 2203.00555, Figure 2.
        """
        encoder, decoder = self.depths
        if not (encoder and decoder):
            return (2 * (encoder + decoder)) ** 0.25, (8 * (encoder + decoder)) ** -0.25
        if causal:
            return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
        both = (encoder**4 * decoder) ** (1 / 16)
        return 0.81 * both, 0.87 / both

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
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @property
    def attention_pair(self) -> int:
        """The multiplications of attention for a pair of tokens: score and weighted sum."""
        return self.num_heads * (self.key_size + self.value_size)

    @property
    def self_attention_pair(self) -> int:
        return self.attention_pair + KINDS[self.positions].multiplications(self)

    @property
    def query_weights(self) -> int:
        """The weights that multiply each token that attends: of queries and outputs."""
        return self.num_heads * (self.key_size + self.value_size) * self.d_model

    @property
    def key_weights(self) -> int:
        """The weights that multiply each token attended to: of keys and values."""
        return self.key_value_heads * (self.key_size + self.value_size) * self.d_model

    @property
    def feed_forward_weights(self) -> int:
        return (2 + (self.feed_forward != "plain")) * self.d_model * self.d_ff


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
    """Position-wise feed-forward network, Equation 2, with a choice of activation.

    Gated ones multiply hidden units by gates (Shazeer 2020, arXiv 2002.05202).
    """

    def __init__(self, config: LayerConfig, rngs: nnx.Rngs):
        def linear(d_in: int, d_out: int) -> Linear:
            dtype, use_bias = jnp.dtype(config.dtype), config.feed_forward_bias
            return Linear(d_in, d_out, use_bias=use_bias, dtype=dtype, rngs=rngs)

        self.hidden = linear(config.d_model, config.d_ff)
        self.output = linear(config.d_ff, config.d_model)
        if config.feed_forward != "plain":
            self.gate = linear(config.d_model, config.d_ff)
        self.form, self.activation = config.feed_forward, config.activation
        self.dropout_rate = config.activation_dropout

    def __call__(self, x_BTD: jax.Array, rngs: DropoutRngs | None = None) -> jax.Array:
        x_BTF = self.hidden(x_BTD)
        if self.form == "plain":
            x_BTF = ACTIVATIONS[self.activation](x_BTF)
        else:
            x_BTF *= GATES[self.form](self.gate(x_BTD))
        return self.output(dropout(x_BTF, self.dropout_rate, rngs))


class Normalization(nnx.Module):
    """Normalisation of each vector. Statistics are float32.

    layer_norm (Ba et al. 2016): biased variance, scale and bias.
    rms_norm (Zhang and Sennrich 2019): no mean is subtracted and no bias added.
    """

    def __init__(self, config: LayerConfig, size: int | None = None, form: str | None = None):
        """size, form: if not d_model and the config's."""
        size, self.form = size or config.d_model, form or config.normalization
        self.scale = nnx.Param(jnp.ones(size, jnp.float32))
        if self.form == "layer_norm":
            self.bias = nnx.Param(jnp.zeros(size, jnp.float32))
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


def last_norm(config: LayerConfig) -> Callable[[jax.Array], jax.Array]:
    """The normalisation at the end of a stack whose layers do not end with one."""
    return Normalization(config) if config.norm in ("pre", "sandwich") else _unchanged


def _unchanged(x: jax.Array) -> jax.Array:
    return x


class AddAndNorm(nnx.Module):
    """Dropout, residual connection and normalisation around one sublayer.

        post      LayerNorm(x + Dropout(Sublayer(x))), the paper's (Sections 3.1 and 5.4)
        pre       x + Dropout(Sublayer(LayerNorm(x)))
        sandwich  x + Dropout(LayerNorm(Sublayer(LayerNorm(x)))) (Ding et al. 2021, CogView)
        deepnorm  LayerNorm(alpha * x + Dropout(Sublayer(x))); see `LayerConfig.deepnorm`
        rezero    x + scale * Dropout(Sublayer(x)), where scale is learned and begins at 0
                  (Bachlechner et al. 2020, who have one for all sublayers of a layer)

    Used as

        y = sublayer(add_and_norm.before(x))
        x = add_and_norm.after(x, y, rngs)
    """

    def __init__(self, config: LayerConfig, causal: bool = False):
        """causal: whether the layer is a decoder's."""
        self.form = config.norm
        if self.form == "rezero":
            self.residual_scale = nnx.Param(jnp.zeros((), jnp.float32))
        else:
            self.norm = Normalization(config)
        if self.form == "sandwich":
            self.norm_of_output = Normalization(config)
        if self.form == "deepnorm":
            self.alpha, _ = config.deepnorm(causal)
        self.dropout_rate = config.dropout
        # True if the kernel of fused_norm.py applies.
        takes = self.form == "post" and config.normalization == "layer_norm"
        self.fused = config.uses("triton_norm") and takes and fused_norm.fits(config.d_model)

    @jax.named_scope("add_and_norm")
    def before(self, x_BTD: jax.Array) -> jax.Array:
        return self.norm(x_BTD) if self.form in ("pre", "sandwich") else x_BTD

    @jax.named_scope("add_and_norm")
    def after(self, x_BTD: jax.Array, y_BTD: jax.Array, rngs: DropoutRngs | None) -> jax.Array:
        if self.fused:
            drops = rngs is not None and self.dropout_rate > 0
            keys_B = row_keys(rngs, x_BTD.shape[0]) if drops else None
            scale_D, bias_D = self.norm.scale[...], self.norm.bias[...]
            settings = fused_norm.Settings(self.dropout_rate, self.norm.epsilon)
            return fused_norm.add_and_norm(x_BTD, y_BTD, keys_B, scale_D, bias_D, settings)
        if self.form == "sandwich":
            y_BTD = self.norm_of_output(y_BTD)
        if self.form == "rezero":
            y_BTD = y_BTD * self.residual_scale[...].astype(y_BTD.dtype)
        if self.form == "deepnorm":
            x_BTD = x_BTD * jnp.asarray(self.alpha, x_BTD.dtype)
        x_BTD = x_BTD + dropout(y_BTD, self.dropout_rate, rngs)
        return self.norm(x_BTD) if self.form in ("post", "deepnorm") else x_BTD
