"""The processor: the cores that this process may use, and what they can do."""

import functools
import os
from pathlib import Path


def available_cores() -> int:
    """How many there are: on a cluster a job may have been given a few of the machine's cores."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_lines() -> list[str]:
    """What Linux says of each core, such as "model name : ..."; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 ones: on x86 with AMX or AVX-512 BF16."""
    flags = next((line for line in cpu_lines() if line.startswith("flags")), "amx_bf16")
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(flags.split())
