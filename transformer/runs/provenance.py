"""What a figure needs to be worth anything: the commit, the versions, the hardware."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from transformer.system.cpu import available_cores, cpu_lines
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
_STARTS = "starts.jsonl"
INITIAL = "initial"  # in a work directory: see runs/init_from.py
ORIGIN = f"{INITIAL}/origin.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sacrebleu", "sentencepiece", "subword-nmt")


def conditions() -> dict[str, Any]:
    """Command, commit, hardware and versions, in the words of the ledger and the benchmarks."""
    import jax  # not at the top: importing it starts threads, and drivers need none

    devices, cores = jax.devices(), available_cores()
    return {
        "command": shlex.join(["python", *map(relative, sys.argv)]),
        "commit": _commit(),
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "cpu": f"{cores} core{'s' * (cores > 1)}, {_cpu()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def add_start(workdir: Path, start: Mapping[str, Any]) -> None:
    """Adds to WORKDIR/starts.jsonl where and with what a run was started or taken up again."""
    path = workdir / _STARTS
    earlier = path.read_text() if path.exists() else ""
    write_atomically(path, f"{earlier}{json.dumps(start)}\n")


def starts(workdir: Path) -> list[dict[str, Any]]:
    """The starts of a run, from its last one at step 0 on."""
    path = workdir / _STARTS
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        found = [json.loads(line) for line in lines]
        if not all(isinstance(start, dict) and "step" in start for start in found):
            raise ValueError("a line is no object with a step")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); restore it") from error
    first = max((i for i, start in enumerate(found) if start["step"] == 0), default=0)
    return found[first:]


def origin(workdir: Path) -> dict[str, Any] | None:
    """Which parameters of which run a run began with, as runs/init_from.py wrote it.

    None if it is not there; UserError if it is damaged.
    """
    from transformer.runs.integrity import read_signed  # which imports JAX

    path = workdir / ORIGIN
    if not path.exists():
        return None
    if (content := read_signed(path)) is None:
        raise UserError(f"{path} is damaged; restore it")
    return content


def relative(path: str) -> str:
    """A path as seen from the top of this project, if it is in there."""
    found = Path(path).resolve()
    return str(found.relative_to(ROOT)) if found.is_relative_to(ROOT) else path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit's short hash, with -dirty where files differ from it.

    A copy without .git (a container's) may be told by the environment variable GIT_COMMIT.
    """
    if not (ROOT / ".git").exists():  # git would look in the folders above
        return os.environ.get("GIT_COMMIT") or "unknown"
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]  # somebody may be committing
    command = [*git, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    names = (line.partition(":")[2].strip() for line in cpu_lines() if line.startswith("model n"))
    return next(names, platform.machine())
