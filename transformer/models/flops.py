"""Model FLOPs utilisation: the arithmetic a model needs, over what the devices could do."""

import jax
import numpy as np

from transformer.models.transformer import TransformerConfig

# Peak of dense bfloat16 matrix products in FLOP/s per JAX device, from the makers' data sheets.
PEAK_BFLOAT16 = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,  # SXM
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,  # SXM
    "NVIDIA H200 NVL": 835e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v6 lite": 918e12,
}


def peak_flops(device: jax.Device, dtype: str) -> float | None:
    """The device's peak for products of this type; None where it is not known."""
    if dtype != "bfloat16":
        return None
    # Devices have longer names, with memory sizes: NVIDIA A100-SXM4-40GB.
    names = [name for name in PEAK_BFLOAT16 if device.device_kind.startswith(name)]
    return PEAK_BFLOAT16[max(names, key=len)] if names else None


def training_flops(
    config: TransformerConfig,
    vocab_size: int,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
) -> np.ndarray:
    """FLOPs to train on each pair once: matrix products, forward and (twice that) backward.

    Padding, dropout, normalisation and recomputation do not count; attention counts every
    position of its own sentence, masked by causality or not.
    """
    c = config
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    # Weights that each token meets.
    own_token = 2 * c.num_heads * c.key_size * c.d_model  # query and key
    own_token += 2 * c.num_heads * c.value_size * c.d_model  # value and output
    feed_forward = 2 * c.d_model * c.d_ff
    # In attention over the memory, queries and outputs are of target tokens, keys and values
    # of source tokens.
    pair = c.num_heads * (
        c.key_size + c.value_size
    )  # scores and weighted sums, for each pair of tokens
    encoder = s * (own_token + feed_forward) + s * s * pair
    decoder = t * (own_token + feed_forward) + t * t * pair
    decoder += (s + t) * own_token / 2 + s * t * pair
    multiplications = (
        c.num_encoder_layers * encoder + c.num_decoder_layers * decoder + t * c.d_model * vocab_size
    )
    return 3 * 2 * multiplications
