"""Scripts in processes of their own, alone or as one job, and limits of a process."""

import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts import ROOT, Result, environment


@contextlib.contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """The system lets no file of this process grow beyond `size` bytes: parts are written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def on_devices(count: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return os.environ | environment() | {"XLA_FLAGS": flags}


@contextlib.contextmanager
def training(
    arguments: Sequence[str],
    workdir: Path,
    *job: Sequence[str],
    until: str = "metrics.jsonl",
    devices: int = 1,
    **streams,
) -> Iterator[list[subprocess.Popen]]:
    """Processes of train.py, one for each `job` of flags, when `until` is in the work directory."""
    path, deadline = workdir / until, time.monotonic() + 120
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, ROOT / "train.py", *arguments, f"--workdir={workdir}", *flags],
                    cwd=workdir.parent,
                    env=on_devices(devices),
                    **streams,
                )
            )
            for flags in job or [()]
        ]
        while not (path.exists() and path.stat().st_size):
            assert all(process.poll() is None for process in processes)
            assert time.monotonic() < deadline
            time.sleep(0.001)
        yield processes


def flags_of_a_job(count: int) -> list[list[str]]:
    """For each process the flags that make it one of a job."""
    address = f"--coordinator=localhost:{free_port()}"
    return [[address, f"--num_processes={count}", f"--process_id={i}"] for i in range(count)]


def slurm_variables(count: int) -> list[dict[str, str]]:
    """For each task of a step on one node the variables by which JAX knows it."""
    job_id = str(free_port(61440) - 61440)  # JAX takes the port from it
    return [
        {
            "SLURM_JOB_ID": job_id,
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_NTASKS": str(count),
            "SLURM_PROCID": str(i),
            "SLURM_LOCALID": str(i),
        }
        for i in range(count)
    ]


def free_port(lowest: int = 20_000) -> int:
    while True:
        port = random.randrange(lowest, min(lowest + 4096, 65536))
        with socket.socket() as other, contextlib.suppress(OSError):
            other.bind(("localhost", port))
            return port


def run_together(
    commands: Sequence[Sequence[str | Path]],
    cwd: Path,
    variables: Sequence[dict[str, str]] = (),
    devices: int = 2,
) -> list[Result]:
    """Runs Python with several lists of arguments at the same time."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *command],
                    cwd=cwd,
                    env=on_devices(devices) | own,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            for command, own in zip(commands, variables or [{}] * len(commands), strict=True)
        ]
        outputs = [process.communicate(timeout=900) for process in processes]
    codes = [process.returncode for process in processes]
    return [Result(code, out, err.decode()) for code, (out, err) in zip(codes, outputs)]
