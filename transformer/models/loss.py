"""Cross-entropy with label smoothing (Section 5.4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.models.numerics import at_least_float32, multiply, split

MAX_POSITIONS = 2048  # of a row whose logits are in memory at once


class Loss(NamedTuple):
    """Sums over the real tokens, so that sums of parts add up; divide once, by `tokens`."""

    loss: jax.Array  # what training minimises, nats
    nll: jax.Array  # cross-entropy without label smoothing, nats; exp(nll / tokens): perplexity
    tokens: jax.Array  # how many
    # Parts of `loss` beside the cross-entropy, weighted as they are there, to be logged by name.
    terms: dict[str, jax.Array] = {}


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
    output_VD: jax.Array,
    labels_BT: jax.Array,
    real_BT: jax.Array,
    label_smoothing: float,
    dtype: jnp.dtype,
    bias_V: jax.Array | None = None,
) -> Loss:
    """`cross_entropy` of the logits hidden @ output^T + bias.

    A model's loss begins with its last hidden states, so that the logits, its largest array, are
    made here and nowhere else. More than MAX_POSITIONS are taken in blocks, one after another, and
    the backward pass computes the logits of a block again.
    """
    if labels_BT.shape[1] > MAX_POSITIONS:
        num_blocks = -(-labels_BT.shape[1] // MAX_POSITIONS)
        sides = hidden_BTD, labels_BT, real_BT

        def of_block(block):
            hidden_BTD, labels_BT, real_BT = block
            others = label_smoothing, dtype, bias_V
            return output_loss(hidden_BTD, output_VD, labels_BT, real_BT, *others)

        blocks = tuple(split(x, num_blocks, axis=1) for x in sides)
        losses = jax.lax.map(jax.checkpoint(of_block, prevent_cse=False), blocks)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), losses)
    with jax.named_scope("logits"):
        logits_BTV = multiply("BTD,VD->BTV", hidden_BTD, output_VD, dtype)
        if bias_V is not None:
            logits_BTV += bias_V[None, None]
    return cross_entropy(logits_BTV, labels_BT, real_BT, label_smoothing)
