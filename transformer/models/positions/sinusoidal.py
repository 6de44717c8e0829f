"""Encodings of positions that are added to embeddings: the paper's (Section 3.5), fairseq's."""

import jax
import jax.numpy as jnp
import numpy as np


def sinusoidal_encoding(positions_T: jax.Array, d_model: int) -> jax.Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same.

    Sine and cosine alternate along the channels, as the paper writes it (Tensor2Tensor
    concatenates two halves and spaces the frequencies differently). Returns [T, D].
    """
    even = np.arange(0, d_model, 2)
    frequency = jnp.asarray(10000.0 ** (-even / d_model))
    angle_TX = positions_T[:, None] * frequency[None, :]
    encoding_TD = jnp.stack([jnp.sin(angle_TX), jnp.cos(angle_TX)], axis=-1)
    return encoding_TD.reshape(encoding_TD.shape[0], -1)[:, :d_model]


def fairseq_encoding(positions_T: jax.Array, d_model: int) -> jax.Array:
    """fairseq's encoding, which M2M100 and NLLB-200 have; [T, D].

    All sines come before all cosines, with frequencies from 1 to exactly 1 / 10000. The number 0 or
    1 of a position is for padding there, so the first token has 2.
    """
    half = d_model // 2
    frequency = jnp.asarray(10000.0 ** (-np.arange(half) / max(half - 1, 1)))
    angle_TX = (positions_T[:, None] + 2) * frequency[None, :]
    encoding_TD = jnp.concatenate([jnp.sin(angle_TX), jnp.cos(angle_TX)], axis=1)
    return jnp.pad(encoding_TD, ((0, 0), (0, d_model % 2)))
