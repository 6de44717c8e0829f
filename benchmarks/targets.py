"""Devices to compile for that this machine does not have."""

import importlib.util
import os
import re
from collections.abc import Sequence

import jax
from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies

from transformer.system.errors import UserError

# What XLA asks of a GPU: cores, float32 units a core, shared memory of a core and of a program on
# it, level-2 cache, clock (GHz), bandwidth, memory, compute capability. Memory is what a driver
# reports, a little more than the data sheet's.
_GPUS = {
    "h200": (132, 128, 233472, 232448, 52428800, 1.98, 4.8e12, 150e9, "9 minor: 0"),
    "h100": (132, 128, 233472, 232448, 52428800, 1.98, 3.35e12, 85e9, "9 minor: 0"),
    "a100": (108, 64, 167936, 166912, 41943040, 1.41, 2.039e12, 85e9, "8 minor: 0"),
    "l4": (58, 128, 102400, 101376, 50331648, 2.04, 0.3e12, 24e9, "8 minor: 9"),
}
_GPU = """\
gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32
shared_memory_per_block: 49152 shared_memory_per_core: {2} threads_per_core_limit: {threads}
core_count: {0} fpus_per_core: {1} block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
block_dim_limit_z: 65535 memory_bandwidth: {6:.0f} l2_cache_size: {4} clock_rate_ghz: {5}
device_memory_size: {7:.0f} shared_memory_per_block_optin: {3}
cuda_compute_capability {{ major: {8} }} registers_per_core_limit: 65536
registers_per_block_limit: 65536 }} platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "NVIDIA {name}"
"""
GPUS_OF_A_HOST = 8


def compile_options(devices: Sequence[jax.Device]) -> dict[str, int]:
    """Without a GPU nothing can be tried out on it, which XLA would do to choose kernels."""
    return {"xla_gpu_autotune_level": 0} if devices[0].platform in ("cuda", "gpu") else {}


def target_devices(name: str) -> Sequence[jax.Device]:
    """The devices of "h200", "h200:8", "v5e:2x4", ... to compile for; those of cpu:N are real.

    To be called before JAX is used. Raises UserError for devices that there are not, and for those
    whose compiler is not installed.
    """
    jax.config.update("jax_platforms", "cpu")
    kind, _, number = name.partition(":")
    if kind in _GPUS or kind == "cpu":
        if not re.fullmatch(r"([1-9]\d*)?", number):
            raise UserError(f"--device={name} has no number of devices; {kind}:8 has")
        count = int(number or 1)
        if kind in _GPUS:
            return _gpus(kind, count)
        jax.config.update("jax_num_cpu_devices", count)
        return jax.devices()
    return _tpus(name)


def _gpus(kind: str, count: int) -> Sequence[jax.Device]:
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise UserError(
            f'--device={kind} needs the compiler for NVIDIA: pip install "jax[cuda13]", which '
            "needs no GPU"
        )
    if count > GPUS_OF_A_HOST and count % GPUS_OF_A_HOST:
        raise UserError(f"--device={kind}:{count} is not whole hosts of {GPUS_OF_A_HOST} GPUs")
    threads = 1536 if kind == "l4" else 2048
    text = _GPU.format(*_GPUS[kind], threads=threads, name=kind.upper())
    hosts = max(1, count // GPUS_OF_A_HOST)
    devices = topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        target_config=text,
        topology=f"{hosts}x{count // hosts}x1",
    ).devices
    # JAX would ask the first device of this machine.
    capability = float(devices[0].compute_capability)
    fused_attention_stablehlo.check_compute_capability = lambda least: capability >= float(least)
    return devices


def _tpus(topology: str) -> Sequence[jax.Device]:
    if not re.fullmatch(r"v\d\w*:\d+(x\d+)+", topology):
        raise UserError(
            f"--device={topology} is unknown; it must be {', '.join(_GPUS)} or cpu, with :N for N "
            "of them, or a TPU slice such as v5e:2x4"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f'--device={topology} needs libtpu, which compiles for TPUs: pip install "jax[tpu]"'
        )
    # What libtpu would ask the network for; the topology asked of it need not be of that type.
    # And it would let one process at a time have the TPU, which this one does not touch.
    os.environ.update(TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-8")
    os.environ.update(ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_SKIP_MDS_QUERY="1")
    # Both cores of a v4 chip are one device of JAX, as v5p's are without being asked for.
    options = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--device={topology} is no TPU slice ({error}); v5e:2x4 and v5p:2x2x1 are"
        ) from error
