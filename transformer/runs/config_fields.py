"""The fields of a section's class: their types, and which are needed or hold paths."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from transformer.system.errors import UserError


def required(section: type) -> list[str]:
    """The fields without a default; one with a default is newer than some work directories."""
    fields, missing = dataclasses.fields(section), dataclasses.MISSING
    return [x.name for x in fields if x.default is missing and x.default_factory is missing]


def part_of(kind: Any) -> type | None:
    """The class of the parts that a field holds by name, as data.corpora does; or None."""
    return typing.get_args(kind)[1] if typing.get_origin(kind) is dict else None


def path_fields(section: type) -> list[str]:
    """The fields of a section that name files or folders."""
    fields = dataclasses.fields(section)
    return [field.name for field in fields if field.metadata and field.metadata["place"]]


def check_types(prefix: str, section: type, values: Mapping[str, Any]) -> None:
    """Raises UserError unless the values of a section's fields have their types."""
    types = {field.name: field.type for field in dataclasses.fields(section)}
    for name, value in values.items():
        check_type(f"config.{prefix}.{name}", value, types[name])


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raises UserError unless a value has its field's type: int, float, str, bool, or also None."""
    if isinstance(value, bool):
        fits = kind is bool
    elif isinstance(value, int):
        fits = isinstance(value, kind) or (abs(value) < 2**53 and isinstance(0.0, kind))
    else:
        fits = isinstance(value, kind)
    if not fits:
        kind = getattr(kind, "__name__", kind)
        raise UserError(f"{name} is {value!r:.60}; it must be of type {kind}")
    # Counts go into arrays of 32 bits.
    if isinstance(value, int) and abs(value) >= 2**31 and name != "config.training.seed":
        raise UserError(f"{name} is {value}; it must be less than {2**31}")
