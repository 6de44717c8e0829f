"""The paper's encoding of positions, which is added to embeddings (Section 3.5)."""

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
