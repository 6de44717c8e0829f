"""Shell commands for messages, written in the way this process itself was started."""

import os
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command(name: str, *arguments: str) -> str:
    """A shell command that runs an entry script, such as evaluate, or a module of the package.

    After `python train.py` it is `python evaluate.py`; after `transformer-train` it is
    `transformer-evaluate`. Its paths, and its name for Python, work here.
    """
    return shlex.join([*_words(name), *arguments])


def script(name: str) -> str:
    """The name of an entry script for running text: evaluate.py or transformer-evaluate."""
    return Path(_words(name)[-1]).name


def called_as_installed() -> bool:
    """True if this process is a command of an installed package: see runs/console.py."""
    return Path(*sys.orig_argv[1:2]).name == f"transformer-{Path(sys.argv[0]).stem}"


def _words(name: str) -> list[str]:
    if "." in name:
        return [_python(), "-m", name]
    installed = f"transformer-{name}"
    if called_as_installed():
        path = Path(sys.orig_argv[1]).with_name(installed)
        return [installed if _is_found(installed, path) else str(path)]
    for path in (Path(sys.argv[0]).with_name(f"{name}.py"), Path(f"{name}.py")):
        if path.resolve() == ROOT / f"{name}.py":
            return [_python(), str(path)]
    path = Path(sys.executable).with_name(installed)
    return [installed] if _is_found(installed, path) else [_python(), str(ROOT / f"{name}.py")]


def _python() -> str:
    names = [name for name in ("python", "python3") if _is_found(name, Path(sys.executable))]
    return [*names, sys.executable][0]


def _is_found(name: str, path: Path) -> bool:
    """True if a shell runs this file for the command `name`."""
    found = shutil.which(name)
    return found is not None and os.path.abspath(found) == os.path.abspath(path)
