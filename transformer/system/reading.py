"""Reading of files that may be a stranger's: work directories, results, exports and similar.

All such files are read here. A file must be plain, no pipe or device; after links it must be
inside its folder; its size is bounded, and JSON must have the type that its reader expects. All
else raises UserError.
"""

import functools
import json
import math
import os
import stat
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NewType

from transformer.system.errors import UserError

# The errors of a file that does not exist. Other read errors say nothing about its content.
MISSING = FileNotFoundError, NotADirectoryError
MOST = 1 << 28  # bytes of a file that is read whole: texts, metrics, tokenizers, arrays
MOST_JSON = 1 << 24
_LEVELS = 50  # of nested lists and objects
_DIGITS = 40

Count = NewType("Count", int)  # from 0 on
Size = NewType("Size", int)  # of 32 bits
Number = NewType("Number", float)  # or NaN, or infinite


def open_plain(path: Path, inside: Path | None, mode: str = "rb", buffering: int = -1) -> IO[bytes]:
    """Opens a plain file that is `inside` a folder after all links are followed.

    inside: None for a file that the user names, or for a folder in which links are usual.
    Raises OSError as `open` does, and UserError for a file that it refuses.
    """

    def opened(name: str, flags: int) -> int:
        real = os.path.realpath(name)
        if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
            raise UserError(
                f"{name} is outside of {inside}, and files from elsewhere are not used; if you "
                "trust it, put a copy there"
            )
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
        descriptor = os.open(real, flags, 0o666)  # never waits for the other end of a pipe
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            return descriptor  # `open` refuses folders
        os.close(descriptor)
        raise _no_plain_file(name)

    try:
        return open(path, mode, buffering, opener=opened)
    except ValueError as error:  # a null character
        raise UserError(f"{str(path)!r} is no name of a file ({error}); mend that") from error


def plain(path: Path) -> Path:
    """The path of a data file; raises UserError for a pipe or a device, which may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise _no_plain_file(path)
    return path


def _no_plain_file(path: str | Path) -> UserError:
    return UserError(f"{path} is a pipe or a device; put a plain file in its place")


def read_plain(path: Path, inside: Path | None, most: int = MOST) -> bytes:
    """The content of a file of at most `most` bytes; raises as `open_plain` does."""
    with open_plain(path, inside) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise UserError(f"{path} has more than {most >> 20} MiB; put the right file there")
        return file.read()


def read_text(path: Path, inside: Path | None, most: int = MOST) -> str:
    """The UTF-8 text of a file. Raises one of MISSING if there is none, else UserError."""
    try:
        return read_plain(path, inside, most).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); restore it") from error
    except MISSING:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; mend that") from error


def read_json(path: Path, inside: Path | None, kind: Any, mend: str = "restore it") -> Any:
    """The JSON value in a file, checked by `parse_json`; raises as `read_text` does.

    mend: the advice to the user if the file is damaged.
    """
    text = read_text(path, inside, MOST_JSON)
    try:
        return parse_json(text, kind)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {mend}") from error


def read_json_lines(
    path: Path, inside: Path | None, kind: Any, mend: str, *, is_growing: bool = False
) -> list[Any]:
    """The JSON value of each line.

    mend: what was expected and what to do. is_growing: text after the last line feed may be torn,
    and is ignored.
    """
    *lines, last = read_text(path, inside).split("\n")
    values = []
    for number, line in enumerate([*lines, last] if last and not is_growing else lines, start=1):
        try:
            values.append(parse_json(line, kind))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {mend} ({error})") from error
    return values


def parse_json(content: bytes | str, kind: Any) -> Any:
    """The JSON value in a text, of a given type; raises ValueError with the reason otherwise.

    kind: a scalar, Count, Number or Any; list[], dict[str, ] and | of these; a TypedDict, whose
      object may have more names, or a NamedTuple, whose object may not. The result has a dict
      instead of a NamedTuple.
    """
    try:
        text = content.decode() if isinstance(content, bytes) else content
        value = json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except RecursionError:
        raise ValueError("too many brackets within each other") from None
    inner, levels = [value], 0
    while inner := [x for x in inner if type(x) in (dict, list)]:
        inner = [x for part in inner for x in (part.values() if type(part) is dict else part)]
        levels += 1
        if levels > _LEVELS:
            raise ValueError("too many brackets within each other")
    return checked(value, kind)


def checked(value: Any, kind: Any) -> Any:
    """The same JSON value; raises ValueError unless it is of a type, as in `parse_json`."""
    if reason := _check_of(kind)(value, ""):
        raise ValueError(reason)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{twice!r:.60} is there twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


_SCALARS = {
    int: ("a whole number", lambda x: type(x) is int),
    Count: ("a whole number from 0 on", lambda x: type(x) is int and 0 <= x < 1 << 63),
    Size: ("a whole number", lambda x: type(x) is int and abs(x) < 1 << 31),
    Number: ("a number", lambda x: type(x) in (int, float)),
    float: ("a finite number", lambda x: type(x) in (int, float) and math.isfinite(x)),
    str: ("a text", lambda x: isinstance(x, str)),
    bool: ("true or false", lambda x: isinstance(x, bool)),
    types.NoneType: ("null", lambda x: x is None),
}


# (a value, its path in the JSON) -> the fault in words, or None.
Check = Callable[[Any, str], str | None]


@functools.cache
def _check_of(kind: Any) -> Check:
    """The check that a JSON value is of a type."""
    outer, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if outer is Any:
        return lambda value, place: None
    if outer in _SCALARS:
        word, fits = _SCALARS[outer]
        return lambda value, place: None if fits(value) else _wrong(value, place, word)
    if outer in (types.UnionType, typing.Union):
        first, *others = map(_check_of, inner)

        def check(value: Any, place: str) -> str | None:
            reason = first(value, place)
            return reason and (reason if all(other(value, place) for other in others) else None)
    elif outer is list:
        of_item = _check_of(inner[0])

        def check(value: Any, place: str) -> str | None:
            if not isinstance(value, list):
                return _wrong(value, place, "a list")
            found = (of_item(x, f"{place}[{i}]") for i, x in enumerate(value))
            return next(filter(None, found), None)
    else:
        of_value = _check_of(inner[1]) if outer is dict else None
        of_field = {} if outer is dict else typing.get_type_hints(outer)
        optional = getattr(outer, "__optional_keys__", ())
        required = [name for name in of_field if name not in optional]
        is_closed = hasattr(outer, "_fields")

        def check(value: Any, place: str) -> str | None:
            if not isinstance(value, dict):
                return _wrong(value, place, "an object")
            for name in required:
                if name not in value:
                    return f"{place}.{name}".lstrip(".") + " is missing"
            for name, x in value.items():
                of = _check_of(of_field[name]) if name in of_field else of_value
                if of is None and is_closed:
                    return f"{place}.{name:.60}".lstrip(".") + " is not known"
                if of and (reason := of(x, f"{place}.{name:.60}")):
                    return reason
            return None

    return check


def _wrong(value: Any, place: str, expected: str) -> str:
    return f"{place.lstrip('.') or 'it'} is {value!r:.60}; expected {expected}"
