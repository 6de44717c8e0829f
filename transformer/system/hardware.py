"""What is known of the devices."""

import os

import jax

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


def memory_limit(device: jax.Device) -> int | None:
    """Bytes of the device's own memory that JAX may use; None for a CPU, which has none."""
    return (device.memory_stats() or {}).get("bytes_limit")


def memory_of_host() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
