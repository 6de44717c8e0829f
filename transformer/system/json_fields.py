"""JSON objects that others wrote: fields are taken with their types; the others stay known."""

from pathlib import Path
from typing import Any, Self

from transformer.system.errors import UserError
from transformer.system.reading import MISSING, read_json

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_MISSING = object()


class JsonFields:
    """The fields of an object; `advice` tells what to do with a file that cannot be used."""

    def __init__(self, content: dict[str, Any], path: Path, advice: str):
        self._content, self.path, self._advice = content, path, advice
        self._taken: set[str] = set()

    @classmethod
    def read(cls, path: Path, advice: str) -> Self:
        """Raises UserError for a file that cannot be read or is no JSON object."""
        try:
            return cls(read_json(path, None, dict[str, Any], advice), path, advice)  # maybe a link
        except MISSING as error:
            raise UserError(f"cannot read {path}: {error.strerror}; {advice}") from error

    def take(self, name: str, kind: type, default: Any = _MISSING) -> Any:
        """The value of a field; raises UserError for one of another type.

        kind: bool, int, float or str. default: for a field that may be missing; if it is None,
        the field may be null.
        """
        self._taken.add(name)
        value = self._content.get(name, default)
        if value is _MISSING:
            raise UserError(f"{self.path} lacks {name!r}; {self._advice}")
        if value is default:
            return value
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (kind in (int, float) and not abs(value) < 2**31):
            raise UserError(
                f"{self.path}: {name} is {value!r:.60}; expected {_KINDS[kind]}; {self._advice}"
            )
        return value

    def values(self, name: str, kind: type) -> list[Any]:
        """The value of a field that is a non-empty list of one type."""
        self._taken.add(name)
        found = self._content.get(name)
        if not isinstance(found, list) or not found or any(type(x) is not kind for x in found):
            raise UserError(
                f"{self.path}: {name} is {found!r:.60}; expected a list, each {_KINDS[kind]}; "
                f"{self._advice}"
            )
        return found

    def left(self) -> dict[str, Any]:
        """The fields that were not taken."""
        return {name: x for name, x in self._content.items() if name not in self._taken}
