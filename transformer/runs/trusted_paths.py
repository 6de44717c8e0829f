"""Data paths that a user trusts: the config of a work directory may be a stranger's.

train.py remembers the data paths that its user names. Without --trust_paths, evaluating a trained
model reads no other path that its config names, except the default folder.
"""

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from transformer.runs import run_config
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.paths import is_elsewhere

DEFAULT = "~/tensorflow_datasets"  # see configs/base.py


def remember(config: Config, named: Collection[str] | None = None) -> None:
    """Remembers the data paths of a run that a user starts.

    named: the fields that the user has named, where others come from another run.
    """
    lines, paths = _known(), _paths(config)
    given = [path for field, path in paths.items() if named is None or field in named]
    new = [line for line in map(_line, given) if line not in lines]
    with contextlib.suppress(OSError):  # no home, or a full one: then --trust_paths is needed
        _list().parent.mkdir(parents=True, exist_ok=True)
        with _list().open("a") as file:
            file.write("".join(f"{line}\n" for line in dict.fromkeys(new)))


def unknown(config: Config, given: Collection[str]) -> dict[str, str]:
    """The paths that a config names and its user does not know, by field.

    given: fields whose value the user has given in another way.
    """
    lines = _known()
    return {
        field: path
        for field, path in _paths(config).items()
        if field not in given and _line(path) not in lines
    }


def check(workdir: Path, paths: Mapping[str, str]) -> None:
    """Raises UserError if there are `unknown` paths, which a stranger may have named."""
    if paths:
        named = [f"{field}={path}" for field, path in paths.items()]
        more = f" and {len(named) - 2} more paths" if named[2:] else ""
        raise UserError(
            f"{workdir / 'config.json'} names {', '.join(named[:2])}{more}, and you have not "
            "trained with that; if you trust the directory, add --trust_paths"
        )


def _paths(config: Config) -> dict[str, str]:
    """The fields with paths of files that a trained model may read."""
    is_path = run_config.fields_marked(config, "place", False)
    return {
        name: value
        for name, value in run_config.flat(config).items()
        # Tokenizers and other models were read when training began, and are copied.
        if name.startswith(("data.", "task.")) and is_path[name]
        if value not in (None, "", DEFAULT)
    }


def absolute(path: str) -> str:
    """A path that means the same from any folder; an address does."""
    return path if is_elsewhere(path) else os.path.abspath(os.path.expanduser(path))


def _line(path: str) -> str:
    return json.dumps(absolute(path))


def _known() -> set[str]:
    with contextlib.suppress(OSError, ValueError):
        return set(_list().read_text().split("\n"))
    return set()


def _list() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # XDG says to ignore a relative path
        state = os.path.expanduser("~/.local/state")
    if not os.path.isabs(state):  # no home: below the current directory it may be a stranger's
        raise FileNotFoundError("no home folder")
    return Path(state) / "transformer-jax" / "data_paths"
