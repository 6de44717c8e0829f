"""Cross-entropy with label smoothing (Section 5.4)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.numerics import at_least_float32, multiply, split

MAX_POSITIONS = 2048  # of a row whose logits are in memory at once

# The least number of parts in which a blocked `output_loss` takes the positions of a row.
LOSS_BLOCKS = 4


class Loss(NamedTuple):
    """Sums over the real tokens, so that sums of parts add up; divide once, by `tokens`."""

    loss: jax.Array  # what training minimises, nats
    nll: jax.Array  # cross-entropy without label smoothing, nats; exp(nll / tokens): perplexity
    tokens: jax.Array  # how many
    # Parts of `loss` besides the cross-entropy, with the same weights, to be logged by name.
    terms: dict[str, jax.Array] = {}


class OutputLayer(NamedTuple):
    """The layer that makes logits of the last hidden states: hidden @ table^T + bias.

    blocked: whether `output_loss` takes positions in blocks, so that whole logits never exist.
    """

    table_VD: jax.Array
    bias_V: jax.Array | None
    dtype: jnp.dtype
    blocked: bool = False


@jax.named_scope("logits")
def logits_of(hidden_BTD: jax.Array, layer: OutputLayer) -> jax.Array:
    """The linear transformation before the softmax, [B, T, V], in at least float32."""
    logits_BTV = multiply("BTD,VD->BTV", hidden_BTD, layer.table_VD, layer.dtype)
    return logits_BTV if layer.bias_V is None else logits_BTV + layer.bias_V[None, None]


@jax.named_scope("loss")
def cross_entropy(
    logits_BTV: jax.Array, labels_BT: jax.Array, real_BT: jax.Array, label_smoothing: float
) -> Loss:
    """Cross-entropy against (1 - eps) * one-hot + eps / V, summed where `real_BT`.

    The eps is spread over the whole vocabulary, the right token included (Szegedy et al.,
    which the paper cites); Tensor2Tensor and fairseq spread it over the other V - 1.
    """
    logits_BTV = logits_BTV.astype(at_least_float32(logits_BTV.dtype))
    normalizer_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
    nll_BT = normalizer_BT - label_logit_BT
    uniform_BT = normalizer_BT - jnp.mean(logits_BTV, axis=-1)
    loss_BT = (1 - label_smoothing) * nll_BT + label_smoothing * uniform_BT
    return Loss(
        loss=jnp.sum(loss_BT, where=real_BT),
        nll=jnp.sum(nll_BT, where=real_BT),
        tokens=jnp.sum(real_BT, dtype=jnp.int32),
    )


def output_loss(
    hidden_BTD: jax.Array,
    layer: OutputLayer,
    labels_BT: jax.Array,
    real_BT: jax.Array,
    label_smoothing: float,
) -> Loss:
    """`cross_entropy` of the logits that the layer makes.

    A model's loss begins with its last hidden states, so that the logits, its largest array, are
    made only here. More than MAX_POSITIONS are taken in parts, one after another, and the backward
    pass computes their logits again.

    For a blocked layer, the forward pass computes the gradient of a block's logits and keeps only
    that, in `dtype`, in which products take it anyway. So no logits are computed twice. `nll` then
    has no gradient.
    """
    output_VD, bias_V, dtype, blocked = layer
    if blocked:
        static = (label_smoothing, jnp.dtype(dtype))
        loss, nll = _blocked(static, hidden_BTD, output_VD, bias_V, labels_BT, real_BT)
        return Loss(loss, jax.lax.stop_gradient(nll), jnp.sum(real_BT, dtype=jnp.int32))
    if labels_BT.shape[1] > MAX_POSITIONS:
        num_blocks = -(-labels_BT.shape[1] // MAX_POSITIONS)
        sides = hidden_BTD, labels_BT, real_BT

        def of_block(block):
            hidden_BTD, labels_BT, real_BT = block
            return output_loss(hidden_BTD, layer, labels_BT, real_BT, label_smoothing)

        blocks = tuple(split(x, num_blocks, axis=1) for x in sides)
        losses = jax.lax.map(jax.checkpoint(of_block, prevent_cse=False), blocks)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), losses)
    return cross_entropy(logits_of(hidden_BTD, layer), labels_BT, real_BT, label_smoothing)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocked(static, hidden_BTD, output_VD, bias_V, labels_BT, real_BT):
    arrays = hidden_BTD, labels_BT, real_BT
    sums = [_block(static, output_VD, bias_V, *block)[:2] for block in _blocks(*arrays)]
    return tuple(map(sum, zip(*sums, strict=True)))


def _blocked_forward(static, hidden_BTD, output_VD, bias_V, labels_BT, real_BT):
    dtype = static[1]
    losses, nlls, dhidden, doutput, dbias = [], [], [], [], []
    for hidden_BtD, *block in _blocks(hidden_BTD, labels_BT, real_BT):
        # One block after the other, so that only one is in memory at a time.
        hidden_BtD, *_ = jax.lax.optimization_barrier((hidden_BtD, *dhidden[-1:]))
        loss, nll, slopes_BtV = _block(static, output_VD, bias_V, hidden_BtD, *block)
        losses.append(loss)
        nlls.append(nll)
        with jax.named_scope("logits"):
            dhidden_BtD = multiply("BTV,VD->BTD", slopes_BtV, output_VD, dtype)
            dhidden.append(dhidden_BtD.astype(hidden_BTD.dtype))
            doutput_VD = multiply("BTV,BTD->VD", slopes_BtV, hidden_BtD, dtype)
            doutput.append(doutput_VD.astype(output_VD.dtype))
            if bias_V is not None:
                dbias.append(slopes_BtV.sum((0, 1), dtype=bias_V.dtype))
    gradients = jnp.concatenate(dhidden, 1), sum(doutput), sum(dbias) if dbias else None
    return (sum(losses), sum(nlls)), gradients


def _blocked_backward(static, gradients, given):
    dhidden_BTD, doutput_VD, dbias_V = jax.tree.map(
        lambda x: x * given[0].astype(x.dtype), gradients
    )
    none = np.zeros(dhidden_BTD.shape[:2], jax.dtypes.float0)
    return dhidden_BTD, doutput_VD, dbias_V, none, none


_blocked.defvjp(_blocked_forward, _blocked_backward)


def _blocks(*arrays_BTx: jax.Array) -> list[tuple[jax.Array, ...]]:
    """The positions of all rows in parts, so that every device has its rows of each part."""
    T = arrays_BTx[0].shape[1]
    parts = min(T, max(LOSS_BLOCKS, -(-T // MAX_POSITIONS)))
    return list(zip(*(jnp.array_split(x, parts, axis=1) for x in arrays_BTx), strict=True))


def _block(static, output_VD, bias_V, hidden_BTD, labels_BT, real_BT):
    """The sums of loss and nll, and the gradient [B, T, V] of the loss with respect to logits."""
    label_smoothing, dtype = static
    V = output_VD.shape[0]
    logits_BTV = logits_of(hidden_BTD, OutputLayer(output_VD, bias_V, dtype))
    with jax.named_scope("loss"):
        normalizer_BT, mean_BT = _log_sum_exp_and_mean(logits_BTV)
        label_logit_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], 2)[..., 0]
        nll_BT = normalizer_BT - label_logit_BT
        loss_BT = (1 - label_smoothing) * nll_BT + label_smoothing * (normalizer_BT - mean_BT)
        is_label_BTV = labels_BT[..., None] == jnp.arange(V)[None, None]
        wanted_BTV = jnp.where(is_label_BTV, 1 - label_smoothing, 0) + label_smoothing / V
        slopes_BTV = jnp.exp(logits_BTV - normalizer_BT[..., None]) - wanted_BTV
        slopes_BTV = jnp.where(real_BT[..., None], slopes_BTV, 0).astype(dtype)
        sums = (jnp.sum(x_BT, where=real_BT) for x_BT in (loss_BT, nll_BT))
        return *sums, slopes_BTV


def _log_sum_exp_and_mean(x_BTV: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both in one pass over x: the sum of exponentials is relative to the largest number so far."""

    def join(first, second):
        (max1, exps1, sum1), (max2, exps2, sum2) = first, second
        largest = jnp.maximum(max1, max2)
        exps = exps1 * jnp.exp(max1 - largest) + exps2 * jnp.exp(max2 - largest)
        return largest, exps, sum1 + sum2

    lowest = jnp.asarray(jnp.finfo(x_BTV.dtype).min, x_BTV.dtype)
    zero = jnp.zeros((), x_BTV.dtype)
    largest_BT, exps_BT, sum_BT = jax.lax.reduce(
        (x_BTV, jnp.ones_like(x_BTV), x_BTV), (lowest, zero, zero), join, (2,)
    )
    return largest_BT + jnp.log(exps_BT), sum_BT / x_BTV.shape[2]
