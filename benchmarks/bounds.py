"""The shortest time of a program on a device, from what the program moves and multiplies.

A kernel lasts at least as long as its bytes take at the memory's speed, and its FLOPs at the
peak; then KERNEL_SECONDS more, to start it. Nobody reaches a data sheet's figures, so a share of
them counts. These are assumptions, not measurements. What lies outside of them: a small array may
still be in the cache when the next kernel reads it (the bound is then too high), arithmetic besides
products takes its time, and so do the gaps of an untuned program (it is too low).
"""

import collections
from collections.abc import Sequence
from typing import Any

from benchmarks.costs import Kernel
from transformer.system.hardware import Specification

MEMORY_SHARE = 4.0 / 4.8  # of the bandwidth: 4.0 TB/s of an H200
PEAK_SHARE = 700 / 989  # of the peak: 700 TFLOP/s of an H100 or H200
KERNEL_SECONDS = 2e-6


def seconds_of(kernel: Kernel, device: Specification) -> float:
    """The bound of all its runs."""
    memory = kernel.bytes / (MEMORY_SHARE * device.bandwidth)
    products = kernel.flops / (PEAK_SHARE * device.bfloat16)
    return kernel.runs * (max(memory, products) + KERNEL_SECONDS)


def by_kind(kernels: Sequence[Kernel], device: Specification) -> dict[str, dict[str, float]]:
    """Bound, kernels, bytes and FLOPs of each kind of work, the longest first."""
    sums = collections.defaultdict(lambda: {"ms": 0.0, "kernels": 0, "bytes": 0, "flops": 0})
    for kernel in kernels:
        row = sums[kernel.kind]
        row["ms"] += 1e3 * seconds_of(kernel, device)
        row["kernels"] += kernel.runs
        row["bytes"] += kernel.runs * kernel.bytes
        row["flops"] += kernel.runs * kernel.flops
    return dict(sorted(sums.items(), key=lambda item: -item[1]["ms"]))


def costliest(kernels: Sequence[Kernel], device: Specification, count: int) -> list[dict[str, Any]]:
    """The kernels with the largest bounds; equal ones of several layers are one row."""
    rows: dict[tuple, dict[str, Any]] = {}
    for kernel in kernels:
        key = kernel.kind, kernel.op_name, kernel.bytes, kernel.flops
        row = rows.setdefault(
            key, dict(zip(("kind", "op_name", "bytes", "flops"), key, strict=True), ms=0.0, runs=0)
        )
        row["ms"] += 1e3 * seconds_of(kernel, device)
        row["runs"] += kernel.runs
    return sorted(rows.values(), key=lambda row: -row["ms"])[:count]
