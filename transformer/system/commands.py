"""Shell commands for messages, written in the way this process itself was started."""

import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "transformer"  # the command of an installed package, and the package's own name
HELP = ("help", "h", "helpshort", "helpfull", "helpxml")


def command(name: str, *arguments: str) -> str:
    """A shell command that runs a command of ours, such as evaluate.

    After `python train.py` it is `python evaluate.py`; after `transformer train` it is
    `transformer evaluate`. Its paths, and its name for Python, work here.
    """
    return shlex.join([*_words(name), *arguments])


def script(name: str) -> str:
    """A command in running text: evaluate.py or transformer evaluate."""
    path = Path(_words(name)[-1])
    return path.name if path.suffix else f"{NAME} {name}"


def called_as_installed() -> bool:
    """True if this process is the command of an installed package."""
    path = Path(sys.argv[0])
    return path.stem == NAME and not path.is_dir()


def version() -> str:
    """The version of this code: pyproject.toml of a checkout has it, or else the package's data."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        return tomllib.loads(project.read_text())["project"]["version"]
    from importlib import metadata  # not at the top: it is slow, and --help is not

    return metadata.version(NAME)


def asks_for_help(arguments: Sequence[str]) -> bool:
    words = [word for word in arguments if word.startswith("-")]
    return any(word.lstrip("-").partition("=")[0] in HELP for word in words)


def _words(name: str) -> list[str]:
    if called_as_installed():
        path = Path(sys.argv[0])
        return [NAME if _is_found(NAME, path) else str(path), name]
    for path in (Path(sys.argv[0]).with_name(f"{name}.py"), Path(f"{name}.py")):
        if path.exists() and path.resolve() == ROOT / f"{name}.py":
            return [_python(), str(path)]
    if os.path.exists(NAME) and os.path.samefile(NAME, ROOT / NAME):
        return [_python(), "-m", NAME, name]
    path = Path(sys.executable).with_name(NAME)
    if _is_found(NAME, path):
        return [NAME, name]
    script = ROOT / f"{name}.py"
    return [_python(), str(script)] if script.exists() else [_python(), str(ROOT / NAME), name]


def _python() -> str:
    names = [name for name in ("python", "python3") if _is_found(name, Path(sys.executable))]
    return [*names, sys.executable][0]


def _is_found(name: str, path: Path) -> bool:
    """True if a shell runs this file for the command `name`."""
    found = shutil.which(name)
    return found is not None and os.path.abspath(found) == os.path.abspath(path)
