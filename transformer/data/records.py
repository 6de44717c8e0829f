"""Records: the rows of files, from each the values of some fields.

The ending of a file's name says how it is read: .jsonl, .json or .ndjson, an object a line;
.parquet; .tsv, a tab between columns and no quoting. With any other ending, a record of several
fields is a line of TSV, and one of a single field is the lines up to an empty one. All but Parquet
may be packed: see text_files.py.

A dot leads into an object or struct: translation.de. Columns of TSV without a header are named by
numbers from 1 on, as for `cut`; with a header, both names and numbers can be used.

Everything here raises UserError for what is not there or cannot be read.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformer.data import text_files
from transformer.data.remembered import of_file
from transformer.data.text_files import ending, read_errors, read_lines
from transformer.system.errors import UserError

_OBJECTS = (".jsonl", ".json", ".ndjson")
_ROWS = 1000  # of Parquet that are decoded at once
_BUFFER = 1 << 20  # bytes of a column of Parquet that are read at once
_LISTED = 20  # the most names in a message
_PAIR = "translation."  # where the hub's pairs have their languages; it may be left out

Row = tuple[str, tuple[Any, ...]]  # where it is, for messages; its values


@dataclasses.dataclass(frozen=True)
class Records:
    """The rows of files, one file after the other; each iteration reads them again.

    fields: the names of the wanted fields, by the field of the data section that names each.
    has_header: whether the first line of TSV names the columns. name: of all files, for messages.
    """

    files: Sequence[str]
    fields: Mapping[str, str]
    has_header: bool = False
    name: str = ""

    def __iter__(self) -> Iterator[Row]:
        for path in self.files:
            text_files.check_is_file(path)
            if (form := ending(path)) in _OBJECTS:
                yield from self._of_objects(path)
            elif form == ".parquet":
                yield from self._of_parquet(path)
            elif form == ".tsv" or len(self.fields) > 1:
                yield from self._of_tsv(path)
            else:
                yield from _of_text(path)

    def __str__(self) -> str:
        return self.name or listed(self.files, most=3)

    def texts(self) -> Iterator[tuple[str, ...]]:
        """The values of each row, all of which must be texts."""
        for where, values in self:
            for number, value in enumerate(values):
                if not isinstance(value, str):
                    check_text(where, [*self.fields.values()][number], value)
            yield values

    def count_and_hash(self) -> tuple[int, list[str]]:
        """The number of rows, and of each file the SHA-256 of its lines' text, or of its bytes."""
        found = [self._count_and_hash(path) for path in self.files]
        return sum(count for count, _ in found), [content for _, content in found]

    def _count_and_hash(self, path: str) -> tuple[int, str]:
        if ending(path) == ".parquet":
            with _open_parquet(path) as file:
                count = file.metadata.num_rows
            found = of_file(path, ["bytes", 1], lambda: {"sha256": file_sha256(path)})
            return count, str(found["sha256"])
        are_objects = ending(path) in _OBJECTS
        counts = str.strip if are_objects else _has_values
        count, content = text_files.count_and_hash(path, counts=counts)
        is_first_named = self.has_header and not are_objects
        return max(0, count - 1) if is_first_named else count, content

    def _of_objects(self, path: str) -> Iterator[Row]:
        for where, row in _objects(path):
            values = []
            for field, name in self.fields.items():
                try:
                    values.append(row[name] if name in row else _inside(row, name))
                except KeyError:
                    raise _missing(where, field, name, _names(row)) from None
            yield where, tuple(values)

    def _of_tsv(self, path: str) -> Iterator[Row]:
        names: list[str] = []
        for number, line in enumerate(read_lines(path), start=1):
            if not _has_values(line):
                continue
            where, values = f"{path}, line {number}", line.split("\t")
            if not names:
                first, numbers = where, list(map(str, range(1, len(values) + 1)))
                names = values if self.has_header else numbers
                if len(set(names)) < len(names):
                    raise UserError(f"{where}: two columns have one name; rename one")
                columns = []
                for field, name in self.fields.items():
                    if name not in names and name not in numbers:
                        hint = "" if self.has_header else "; see also data.has_header"
                        raise _missing(where, field, name, names, hint)
                    columns.append((names if name in names else numbers).index(name))
                if self.has_header:
                    continue
            if len(values) != len(names):
                raise UserError(
                    f"{where} has {len(values)} columns, and {first.removeprefix(f'{path}, ')} has "
                    f"{len(names)}; put one tab between columns and none into text"
                )
            yield where, tuple(values[column] for column in columns)

    def _of_parquet(self, path: str) -> Iterator[Row]:
        with _open_parquet(path) as file, _parquet_errors(path):
            leaves = [file.schema.column(i).path for i in range(len(file.schema))]
            names = []
            for field, name in self.fields.items():
                there = {*leaves, *file.schema_arrow.names}
                if not (known := [x for x in (name, _PAIR + name) if x in there]):
                    raise _missing(path, field, name, leaves)
                names.append(known[0])
            first, classes_of = 1, _classes(file.schema_arrow.metadata)
            for batch in file.iter_batches(_ROWS, columns=[*{*names}]):
                columns = [_column(batch, name, path, first) for name in names]
                for i, classes in enumerate(map(classes_of.get, names)):
                    if classes:  # the hub has -1 for labels that are not public
                        columns[i] = [None if x in (-1, None) else classes[x] for x in columns[i]]
                for number, values in enumerate(zip(*columns, strict=True), start=first):
                    yield f"{path}, row {number}", values
                first += batch.num_rows


def file_sha256(path: str | os.PathLike) -> str:
    """The hash of a file's bytes. A large file is read once for all who ask in a process."""
    status = os.stat(path)
    return _file_sha256(os.fspath(path), status.st_size, status.st_mtime_ns)


@functools.cache
def _file_sha256(path: str, *_state: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_values(line: str) -> bool:
    """False for a blank line of a .tsv; tabs stand between values."""
    return bool(line.strip(" "))


def check_text(where: str, name: str, value: Any) -> None:
    """Raises UserError for the value of a field that is no text."""
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {value!r:.40}, which is no text")


def listed(names: Collection[str], most: int = _LISTED) -> str:
    """Names for a message, the first of them if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join([*names][:most]) + more


def _missing(
    where: str, field: str, name: str, names: Collection[str], hint: str = ""
) -> UserError:
    there = listed(names) or "none"
    return UserError(f"{where} has no field {name!r} (data.{field}); it has: {there}{hint}")


# --- Text and objects ---------------------------------------------------------------------


def _of_text(path: str) -> Iterator[Row]:
    lines: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            lines.append(line)
        elif lines:
            yield f"{path}, line {number - len(lines)}", ("\n".join(lines),)
            lines = []
    if lines:
        yield f"{path}, line {number - len(lines) + 1}", ("\n".join(lines),)


def _objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the object of each line that is not blank.

    NaN and Infinity are not JSON, and half of a surrogate pair is not text.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    decode = json.JSONDecoder(parse_constant=refuse).decode
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = decode(line)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not JSON ({error}); correct it") from error
        if not isinstance(row, dict):
            raise UserError(f'{where}: expected an object such as {{"text": "..."}}')
        yield where, row


def _inside(row: Any, name: str) -> Any:
    """The value of a dotted name; raises KeyError if it is missing."""
    for part in name.split("."):
        if not isinstance(row, dict):
            raise KeyError(part)
        row = row[part]
    return row


def _names(row: Mapping[str, Any]) -> list[str]:
    """The names of an object's values, dotted where an object is inside."""
    found: list[str] = []
    for name, value in row.items():
        inner = _names(value) if isinstance(value, dict) else ()
        found += [f"{name}.{x}" for x in inner] or [name]
    return found


# --- Parquet ------------------------------------------------------------------------------


def _parquet_errors(path: str) -> Any:
    import pyarrow

    return read_errors(path, "Parquet", pyarrow.ArrowException)


def _open_parquet(path: str) -> Any:
    """An open ParquetFile. PyArrow, which TFDS brings, is imported when it is needed."""
    from pyarrow import parquet

    text_files.check_is_file(path)
    with _parquet_errors(path):
        # With pre_buffer, all of a column would be in memory.
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)


def _classes(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """The names of classes by column, which the hub's data sets have as numbers."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        labels = {name: x for name, x in features.items() if "names" in x}
        return {name: x["names"] for name, x in labels.items() if x["_type"] == "ClassLabel"}
    except (TypeError, KeyError, ValueError, AttributeError):  # others wrote the file
        return {}


def _column(batch: Any, name: str, path: str, first: int) -> Iterable[Any]:
    """The values of a batch of rows that begins with number `first`."""
    from pyarrow import compute

    top = max((x for x in batch.schema.names if f"{name}.".startswith(f"{x}.")), key=len)
    column = batch.column(top)
    if name != top:
        column = compute.struct_field(column, name.removeprefix(f"{top}.").split("."))
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for number, value in enumerate(column, start=first):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, row {number}: {name!r} is not UTF-8 ({error}); convert it"
                ) from error
        raise
