"""Cross-entropy with label smoothing (Section 5.4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.models.layers import at_least_float32


class Loss(NamedTuple):
    """Sums over the real tokens, so that sums of parts add up; divide once, by `tokens`."""

    loss: jax.Array  # cross-entropy with label smoothing, nats
    nll: jax.Array  # cross-entropy without, nats; exp(nll / tokens) is the perplexity
    tokens: jax.Array  # how many


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


@jax.named_scope("loss")
def symmetric_divergence(
    logits_BTV: jax.Array, other_logits_BTV: jax.Array, real_BT: jax.Array
) -> jax.Array:
    """KL(p || q) + KL(q || p) of two predictions in nats, summed where `real_BT`."""
    dtype = at_least_float32(logits_BTV.dtype)
    x_BTV, y_BTV = logits_BTV.astype(dtype), other_logits_BTV.astype(dtype)
    difference_BTV = jax.nn.softmax(x_BTV) - jax.nn.softmax(y_BTV)
    # It adds up to nothing, so logits do in place of log-probabilities.
    divergence_BT = jnp.sum(difference_BTV * (x_BTV - y_BTV), axis=-1)
    return jnp.sum(divergence_BT, where=real_BT)
