"""Known figures of the devices: peak rates, memory, bandwidths."""

import os
from typing import NamedTuple

import jax


class Specification(NamedTuple):
    """The maker's figures of a device, as JAX counts devices."""

    bfloat16: float  # peak of dense matrix products, FLOP/s
    memory: float  # GiB
    bandwidth: float  # of that memory, bytes/s
    link: float  # to devices beside it, bytes/s out of it (and as much into it at once)


# TPUs: Google Cloud's page of each version (docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e). A
# link is half of a chip's bidirectional bandwidth; for v4, a chip's rate in all-reduces of a pod.
# GPUs: NVIDIA's data sheets, SXM unless the name differs: nvidia-a100-datasheet-us-nvidia-1758950,
# nvidia-tensor-core-gpu-datasheet (H100), hpc-datasheet-sc23-h200-datasheet-3002446 and
# l4-datasheet-2595652. We could not open them; NVIDIA copied their figures, with the address of
# each, into cluster_info.py of NVIDIA/TensorRT-LLM (tensorrt_llm/auto_parallel, commit 16d2467).
# - The H200's sheet gives peaks with sparsity; dense products have half of them. L4 has half of its
#   242 TFLOP/s in 8 bits, which that file rounds down to 120.
# - A link is half of NVLink's sum of both directions, or L4's PCIe 4.0. For the H100 PCIe it is the
#   NVLink bridge of NVIDIA's product brief; that file has PCIe 5.0.
# - H100 NVL is not in that file. Its peak is the H200 NVL's; the rest is what projects cite.
SPECIFICATIONS = {
    "NVIDIA A100": Specification(312e12, 80e9 / 2**30, 2.039e12, 300e9),  # with 80 GB
    "NVIDIA A100-SXM4-40GB": Specification(312e12, 40e9 / 2**30, 1.555e12, 300e9),
    "NVIDIA H100": Specification(989e12, 80e9 / 2**30, 3.35e12, 450e9),
    "NVIDIA H100 NVL": Specification(835e12, 94e9 / 2**30, 3.9e12, 300e9),
    "NVIDIA H100 PCIe": Specification(756e12, 80e9 / 2**30, 2.0e12, 300e9),
    "NVIDIA H200": Specification(989e12, 141e9 / 2**30, 4.8e12, 450e9),
    "NVIDIA H200 NVL": Specification(835e12, 141e9 / 2**30, 4.8e12, 450e9),
    "NVIDIA L4": Specification(121e12, 24e9 / 2**30, 0.3e12, 32e9),
    "TPU v4": Specification(275e12, 32, 1.2e12, 270e9),
    "TPU v5 lite": Specification(197e12, 16, 0.819e12, 200e9),
    "TPU v5": Specification(459e12, 95, 2.765e12, 600e9),  # v5p
    "TPU v6 lite": Specification(918e12, 32, 1.638e12, 400e9),
}


def specification(device: jax.Device) -> Specification | None:
    """The device's row of the table; None if it has none."""
    # JAX's names are longer, with memory sizes: NVIDIA A100-SXM4-40GB.
    names = [name for name in SPECIFICATIONS if device.device_kind.startswith(name)]
    return SPECIFICATIONS[max(names, key=len)] if names else None


def peak_flops(device: jax.Device, dtype: str) -> float | None:
    """The device's peak for products of this type; None where it is not known."""
    found = specification(device)
    return found.bfloat16 if found and dtype == "bfloat16" else None


def memory_limit(device: jax.Device) -> int | None:
    """Bytes of the device's own memory that JAX may use; None for a CPU, which has none."""
    return (device.memory_stats() or {}).get("bytes_limit")


def memory_of_host() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def units(size: int) -> str:
    """A number of bytes as text, such as "1.2 GiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
