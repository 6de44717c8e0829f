"""The processor cores that this process may use."""

import os


def available_cores() -> int:
    """How many there are: on a cluster a job may have been given a few of the machine's cores."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
