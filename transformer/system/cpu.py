"""The processor: the cores that this process may use, and their abilities."""

import functools
import os
from pathlib import Path


def available_cores() -> int:
    """The number of usable cores: a cluster may give a job only some of the machine's cores."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_lines() -> list[str]:
    """Linux's lines about each core, such as "model name : ..."; no lines elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []


@functools.cache
def multiplies_bfloat16() -> bool:
    """True if bfloat16 beats float32 in products: with AMX or AVX-512 BF16, or Arm's bf16."""
    lines = (line for line in cpu_lines() if line.startswith(("flags", "Features")))
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(next(lines, "").split())
