"""The processor cores that this process may use."""

import functools
import os
from pathlib import Path


def available_cores() -> int:
    """How many there are: on a cluster a job may have been given a few of the machine's cores."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether bfloat16 products are faster than float32 ones: on x86 only with AMX."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line for line in lines if line.startswith("flags")), "amx_bf16")
    return "amx_bf16" in flags.split()
