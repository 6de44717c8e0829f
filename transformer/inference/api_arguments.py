"""Checks of the Python API's arguments; messages use the arguments' Python names."""

import contextlib
import dataclasses
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import Request
from transformer.runs.config_fields import check_type
from transformer.system.errors import UserError, nearest
from transformer.system.paths import local

LOADING = ("checkpoint", "average_last", "ensemble", "long_lines", "max_tokens")
_DECODING = {field.name: field.type for field in dataclasses.fields(DecodingConfig)}
_NAMES = "|".join(["workdir", *LOADING, *_DECODING, "source_language", "target_language"])
_FLAGS = re.compile(rf"(?:--|\b(?:decoding|data)\.)({_NAMES})\b")


@contextlib.contextmanager
def named_as_in_python() -> Iterator[None]:
    """Turns --beam_size and decoding.beam_size in a UserError into beam_size."""
    try:
        yield
    except UserError as error:
        raise UserError(_FLAGS.sub(r"\1", str(error))) from error


def wrong(name: str, value: Any, expected: str) -> UserError:
    return UserError(f"{name} is {reprlib.repr(value)}; give {expected}")


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    return value


def listed(name: str, values: Any, what: str) -> list[Any]:
    """The values as a list, in their order; accepts a generator."""
    no_list = str | bytes | Mapping | set | frozenset
    if isinstance(values, no_list) or not isinstance(values, Iterable):
        raise wrong(name, values, f"a list of {what}")
    return list(values)


def texts(name: str, values: Any) -> list[str]:
    return [text(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values, "texts"))]


def pairs(name: str, values: Any) -> list[tuple[str, str]]:
    what = "pairs of two texts, source and target"
    found = []
    for i, pair in enumerate(listed(name, values, what)):
        sides = texts(f"{name}[{i}]", listed(f"{name}[{i}]", pair, what))
        if len(sides) != 2:
            raise wrong(f"{name}[{i}]", pair, "two texts, source and target")
        found.append((sides[0], sides[1]))
    return found


def requests(sentences: Any, prefixes: Any, constraints: Any, numbers: Any) -> list[Request]:
    """The requests of a search; all but the sentences may be None, or have one value for each."""
    sentences = texts("sentences", [sentences] if isinstance(sentences, str) else sentences)

    def one_each(name: str, values: Any, what: str, none: Any) -> list[Any]:
        if values is None:
            return [none] * len(sentences)
        found = values if isinstance(values, str) else listed(name, values, what)
        if isinstance(found, str) or len(found) != len(sentences):
            raise UserError(
                f"{name} are {found!r:.50} for {len(sentences)} sentences; give a list with as many"
            )
        return found

    prefixes = texts("prefixes", one_each("prefixes", prefixes, "texts", ""))
    constraints = one_each("constraints", constraints, "lists of phrases", ())
    if any(isinstance(phrases, str) for phrases in constraints):
        raise UserError("constraints hold a text; give each sentence a list of phrases")
    constraints = [texts(f"constraints[{i}]", phrases) for i, phrases in enumerate(constraints)]
    numbers = one_each("numbers", numbers, "numbers", None)
    return list(map(Request, sentences, prefixes, constraints, numbers))


def number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, value, "a whole number")
    if value < 1:
        raise UserError(f"{name} is {value}; it must be at least 1")
    return value


def function(name: str, value: Any) -> None:
    if not callable(value):
        raise wrong(name, value, "a function of one number")


def folder(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise wrong(name, value, "the path of a work directory")
    return Path(local(value, name))


def decoding(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `load` that are decoding fields, under the fields' full names."""
    for name, value in options.items():
        if name not in _DECODING:
            hint = nearest(name, [*LOADING, *_DECODING])
            raise UserError(f"load has no option {name}; {hint}")
        if value is not None:
            check_type(name, value, _DECODING[name])
    return {f"decoding.{name}": value for name, value in options.items()}
