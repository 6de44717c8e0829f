"""The provenance of a figure: the commit, the versions, the hardware."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from transformer import configs
from transformer.runs.renamed_fields import renew
from transformer.system.commands import ROOT
from transformer.system.cpu import available_cores, cpu_lines
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.reading import Count, read_json_lines, read_text

_STARTS = "starts.jsonl"
INITIAL = "initial"  # in a work directory: see runs/init_from.py
ORIGIN = f"{INITIAL}/origin.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sacrebleu", "sentencepiece", "subword-nmt")


class Start(TypedDict):
    """A line of starts.jsonl. A run started from Python code has no config file."""

    step: Count
    commit: NotRequired[str]
    device: NotRequired[str]
    cpu: NotRequired[str]
    config_file: NotRequired[str]
    overrides: NotRequired[dict[str, Any]]


Fields = TypedDict("Fields", {"training.steps": Count})  # and other fields of a recorded config


class Origin(TypedDict, total=False):
    """The content of ORIGIN; only the checkpoint if the run's past is not known."""

    checkpoint: str
    checkpoint_steps: list[Count]
    stopped_early: bool
    starts: list[Start]
    overrides: dict[str, Any]
    config: Fields
    steps: Count
    init_from: "Origin"


def conditions() -> dict[str, Any]:
    """Command, commit, hardware and versions, under the ledger's and the benchmarks' names."""
    import jax  # not at the top: importing it starts threads, and drivers do not need it

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
    """Appends to WORKDIR/starts.jsonl the step and the conditions of a start or resumption."""
    path = workdir / _STARTS
    earlier = read_text(path, workdir) if path.exists() else ""
    write_atomically(path, f"{earlier}{json.dumps(start)}\n")


def starts(workdir: Path) -> list[Start]:
    """The starts of a run, from its last one at step 0 on."""
    path = workdir / _STARTS
    mend = "it is damaged; restore it"
    found = read_json_lines(path, workdir, Start, mend) if path.exists() else []
    for start in found:
        renew(start, "overrides")
    first = max((i for i, start in enumerate(found) if start["step"] == 0), default=0)
    return found[first:]


def origin(workdir: Path) -> Origin | None:
    """The run and parameters that a run began with, as runs/init_from.py wrote them.

    None if the record is missing; raises UserError if it is damaged.
    """
    from transformer.runs.integrity import read_signed  # it imports JAX

    path = workdir / ORIGIN
    if not path.exists():
        return None
    if (content := read_signed(path, workdir, Origin)) is None:
        raise UserError(f"{path} is damaged; restore it")
    renew(content, "config", "overrides")
    return content


def relative(path: str) -> str:
    """A path relative to the top of this project, if it lies inside; of a preset, configs/x.py."""
    found = Path(path).resolve()
    for top in (configs.FOLDER.parent, ROOT):  # they differ where the package is installed
        if found.is_relative_to(top):
            return str(found.relative_to(top))
    return path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit's short hash, with -dirty where files differ from it.

    A copy without .git (a container's) takes it from the environment variable GIT_COMMIT.
    """
    if not (ROOT / ".git").exists():  # git would search the parent folders
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
