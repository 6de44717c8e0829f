"""Names of files and folders that a user gives: on the command line, in a config, as patterns.

`DEFINE_path` or `DEFINE_paths` defines a flag that holds a path; `place` or `setting(place=True)`
(errors.py) defines such a field of a config. So all paths are checked before any work begins. Code
that opens a field's path calls `local`; a flag's `value` is local already. tests/test_places.py
goes through every flag and every field.
"""

import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from transformer.system import buckets
from transformer.system.errors import UserError, nearest
from transformer.system.files import PRETRAINED

_PREFIX = "pretrained:"  # and the name of a model that comes with the project

flags.disclaim_key_flags()  # a flag belongs to the module that calls us


def local(path: str | os.PathLike, what: str) -> str:
    """A path on this machine: ~ is expanded, and what lies in a bucket is brought down.

    pretrained:NAME is a model that comes with the project. Raises as `checked` does.
    """
    name = checked(path, what)
    if name.startswith(_PREFIX):
        return str(PRETRAINED / name.removeprefix(_PREFIX))
    return str(buckets.fetch(name)) if buckets.is_address(name) else name


def is_elsewhere(path: str) -> bool:
    """Whether `local` makes another path of it: it is in a bucket or comes with the project."""
    return path.startswith(_PREFIX) or buckets.is_address(path)


def checked(path: str | os.PathLike, what: str, *, in_buckets: bool = True) -> str:
    """A path with ~ expanded. Raises UserError unless it can be a path here or an address.

    what: the name of the flag or field in messages, such as --workdir or data.data_dir.
    in_buckets: whether it may be the address of something in a bucket.
    """
    name = os.fspath(path)
    if in_buckets and isinstance(path, str) and buckets.is_address(name):
        buckets.check_address(name, what)
        return name
    if isinstance(path, str) and name.startswith(_PREFIX):
        names = sorted(path.name for path in PRETRAINED.iterdir() if path.is_dir())
        if (model := name.removeprefix(_PREFIX)) not in names:
            hint = nearest(model, names, _PREFIX)
            raise UserError(f"{what} is {name}, and no such model comes with the project; {hint}")
        return name
    # Path("gs://a") keeps only one slash.
    scheme = re.match(r"([A-Za-z][\w.+-]+):/", name)
    if scheme and (not isinstance(path, str) or name.startswith("//", scheme.end() - 1)):
        raise UserError(
            f"{what} is {name}, and only local files and folders can be used, not {scheme[1]}://; "
            "give a local path (of a bucket, where it is mounted or copied to)"
        )
    if "\0" in name:
        raise UserError(f"{what} is {name!r}, which has a zero byte; give another name")
    expanded = os.path.expanduser(name)
    if expanded == name and name.startswith("~"):
        raise UserError(
            f"{what} is {name}, and no home folder of {name.partition('/')[0]} is known; give the "
            f"whole path, or ./{name} for a name in the current directory"
        )
    check_utf8(expanded, what)
    return expanded


def check_utf8(path: str | os.PathLike, what: str) -> None:
    """Raises UserError unless a path, with the names of all folders above, is UTF-8."""
    try:
        whole = os.path.abspath(path)
        whole.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is {whole!r}, whose name is not UTF-8; rename the file or folder"
        ) from error
    except FileNotFoundError as error:
        raise UserError(
            f"{what} is {path}, and the current directory is gone; change to another one"
        ) from error


def check_no_pattern(path: str | os.PathLike) -> None:
    """Raises UserError for a folder whose name Orbax takes for a pattern: it cannot save there."""
    whole = os.path.abspath(path)
    if glob.has_magic(whole):
        raise UserError(
            f"{whole} has one of * ? [ in its name, and checkpoints cannot be saved there; give a "
            "folder without them"
        )


def looked_up(path: str | os.PathLike) -> str:
    """A hint for the message that a path is missing: the folder of a relative one."""
    if os.path.isabs(path):
        return ""
    try:
        return f" (looked up in {os.getcwd()})"
    except FileNotFoundError:
        return " (the current directory is gone)"


def cannot_read(
    path: str | os.PathLike, error: OSError, *, kind: str = "", advice: str = ""
) -> UserError:
    """The error to raise when a file cannot be opened or read."""
    where = looked_up(path) if isinstance(error, FileNotFoundError) else ""
    return UserError(f"cannot read {kind}{path}: {error.strerror or error}{where}{advice}")


def named_files(
    names: str,
    what: str,
    *,
    separator: str = ",",
    folder: str = "",
    endings: Sequence[str] = ("",),
    order: Callable[[str], Any] = str,
) -> list[str]:
    """The files that a list of names and patterns stands for, each once.

    An existing name is taken literally, even with wildcards in it; any other is a pattern. The list
    itself may be the name of one file. Raises UserError for a name without a file.

    folder: where relative names are looked up. endings: suffixes that files may add, such as .gz.
    order: the sort key for the matches of a pattern.
    """

    def path_of(name: str) -> str:
        return os.path.join(folder, name) if folder else local(name, what)

    def found(name: str) -> list[str]:
        paths = [path_of(name + ending) for ending in endings]
        literal = [path for path in paths if os.path.exists(path)]
        return literal or sorted((x for path in paths for x in matching(path)), key=order)

    parts = [names] if names and os.path.exists(path_of(names)) else names.split(separator)
    files: dict[str, str] = {}
    for name in filter(None, map(str.strip, parts)):
        if not (paths := found(name)):
            or_ending = "".join(f", nor {name}{ending}" for ending in endings[1:])
            raise UserError(
                f"{what}: there is no file {path_of(name)}{or_ending}{looked_up(path_of(name))}; "
                "name text files, or a pattern"
            )
        for path in paths:
            check_utf8(path, what)
            files.setdefault(os.path.realpath(path), path)
    if not files:
        raise UserError(f"{what} is empty; name files, or a pattern")
    return list(files.values())


def matching(pattern: str) -> list[str]:
    """The matches of a pattern; the name itself, if there is such a file or folder."""
    return [pattern] if os.path.lexists(pattern) else glob.glob(pattern, recursive=True)


class PathParser(flags.ArgumentParser):
    """Parses a flag that names a file or a folder. Its value stays as given."""

    def __init__(self, name: str, default: str | None = None, in_buckets: bool = True):
        self._what, self._default, self._in_buckets = f"--{name}", default, in_buckets

    def parse(self, argument: str) -> str:
        if argument != self._default:  # the default is parsed at import
            checked(argument, self._what, in_buckets=self._in_buckets)
        return argument


class PathListParser(flags.ListParser):
    """Parses a flag that names files or folders, with commas between them."""

    def __init__(self, name: str):
        super().__init__()
        self._what = f"--{name}"

    def parse(self, argument: str | list[str]) -> list[str]:
        is_one = isinstance(argument, str) and argument
        is_one = is_one and os.path.exists(checked(argument, self._what))
        names = [argument] if is_one else super().parse(argument)
        for name in names:
            checked(name, self._what)
        return names


class _PathFlag(flags.Flag):
    """A flag whose value, if it is in a bucket, is brought down when it is asked for."""

    @property
    def value(self) -> Any:
        def here(name: str) -> str:
            return local(name, f"--{self.name}") if is_elsewhere(name) else name

        given = self._value
        return list(map(here, given)) if isinstance(given, list) else given and here(given)

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value


def given(*holders: flags.FlagHolder[str | None]) -> list[Path]:
    """The paths of flags that a command cannot do without; raises UserError if one is missing."""
    for holder in holders:
        if not holder.value:
            raise UserError(f"--{holder.name} is missing; see --help")
    return [Path(holder.value).expanduser() for holder in holders]


def argument(path: str) -> Path:
    """The `type` of an argument of argparse that names a file or a folder."""
    return Path(checked(path, "an argument", in_buckets=False))


def DEFINE_path(
    name: str,
    default: str | None,
    help: str,
    *,
    in_buckets: bool = True,
    is_field: bool = False,
) -> flags.FlagHolder[str | None]:
    """A flag that names a file or a folder.

    in_buckets: whether it may be an address there. is_field: the value is for a field of a config,
    so it stays as it is given.
    """
    parser = PathParser(name, default, in_buckets)
    kind = flags.Flag if is_field else _PathFlag
    return flags.DEFINE_flag(kind(parser, flags.ArgumentSerializer(), name, default, help))


def DEFINE_paths(name: str, default: list[str] | None, help: str) -> flags.FlagHolder[list[str]]:
    """A flag that names files or folders, with commas between them."""
    parser, serializer = PathListParser(name), flags.CsvListSerializer(",")
    return flags.DEFINE_flag(_PathFlag(parser, serializer, name, default, help))
