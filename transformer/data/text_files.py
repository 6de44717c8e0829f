"""Reading text, plain or gzipped, line by line.

A line ends only at a line feed. Python also takes U+2028, U+0085, form feeds and lone carriage
returns for line ends, but they occur inside real sentences. The carriage return before a line
feed and a byte-order mark are not part of the text.

Everything here raises UserError for a file that cannot be read, is damaged or is not UTF-8.
"""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import select
import stat
import zlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, Any

from transformer.system.errors import UserError
from transformer.system.paths import cannot_read

MAX_LINE_BYTES = 1 << 24  # so that a file without line feeds is not read whole
_BLOCK = 10_000  # lines
_CHUNK = 1 << 16  # bytes: the capacity of a pipe
_PATIENCE = 0.01  # seconds: a steady writer is not slower


def is_gzip(path: str | os.PathLike) -> bool:
    """True if the name of a file says that it is compressed: .gz or .GZ."""
    return os.fspath(path).lower().endswith(".gz")


def ending(path: str | os.PathLike) -> str:
    """The ending of a file's name in lower case, without .gz: .jsonl for X.JSONL.gz."""
    return PurePath(os.fspath(path).lower().removesuffix(".gz")).suffix


def open_text(path: str | os.PathLike) -> IO[bytes]:
    """Opens a text file, plain or ending in '.gz', for its bytes."""
    with _read_errors(path):
        return gzip.open(path) if is_gzip(path) else open(path, "rb")


def blocks_of_lines(file: IO[bytes], name: str | os.PathLike, size: int) -> Iterator[list[str]]:
    """The lines of an open file, `size` at a time; `name` is its name in errors."""
    all_lines, number = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 0
    while True:
        lines = []
        with _read_errors(name):
            for line in itertools.islice(all_lines, size):
                number += 1
                lines.append(_text(line, name, number))
        if not lines:
            return
        if number == len(lines):
            lines[0] = lines[0].removeprefix("\ufeff")
        yield lines


def lines_as_they_come(
    file: IO[bytes], name: str | os.PathLike
) -> Iterator[str | UserError | None]:
    """The lines of an open file, such as a pipe into which somebody types.

    For a line that is not text, a UserError is yielded, not raised: the lines after it can be
    read. None is yielded when the next line has to be waited for.
    """

    def line_of(content: bytes) -> str | UserError:
        try:
            line = _text(content, name, number)
        except UserError as error:
            return error
        return line.removeprefix("\ufeff") if number == 1 else line

    number, is_told = 1, False  # of the current line; whether it was reported as too long
    begun = bytearray()
    while True:
        if not _has_more(file):
            yield None
        with _read_errors(name):
            chunk = file.read1(_CHUNK)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not is_told:
                yield line_of(begun + end)
            number, is_told = number + 1, False
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE_BYTES:
            if not is_told:
                yield line_of(begun)
            is_told = True
            begun.clear()
        if not chunk:
            if begun and not is_told:
                yield line_of(begun)
            return


def count_lines(file: IO[bytes]) -> int:
    """The approximate number of lines left to read; 0 if counting would consume them."""
    try:
        descriptor = file.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return 0
        if isinstance(file, gzip.GzipFile):
            count = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
            file.rewind()
            return count
        count, place = 0, os.lseek(descriptor, 0, os.SEEK_CUR)
        while chunk := os.pread(descriptor, _CHUNK, place):
            count, place = count + chunk.count(b"\n"), place + len(chunk)
        return count
    except (OSError, EOFError, zlib.error):  # reading will report it
        return 0


def _has_more(file: IO[bytes]) -> bool:
    """True if reading would not wait, or not for long; the buffer must be empty."""
    try:
        return bool(select.select([file], [], [], _PATIENCE)[0])
    except (OSError, ValueError):  # no descriptor
        return True


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    """The lines of a text file."""
    with open_text(path) as file:
        for lines in blocks_of_lines(file, path, _BLOCK):
            yield from lines


def json_rows(path: str | os.PathLike, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The position and the object of each line of a JSON-lines file; skips blank lines.

    example: an example of a line, for the UserError about one that is no object. NaN and Infinity
      are not JSON, and half of a surrogate pair is not text.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line, parse_constant=refuse)
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place} is not JSON ({error}); correct it") from error
        if not isinstance(row, dict):
            raise UserError(f"{place}: expected an object such as {example}")
        yield place, row


def count_and_hash(path: str) -> tuple[int, str]:
    """The number of lines of a text file, and the SHA-256 of their text."""
    if os.path.exists(path) and not os.path.isfile(path):
        # Pipes are refused, too: the files are read more than once.
        raise UserError(f"{path} is not a file; give a text file, or one ending in .gz")
    count, content = 0, hashlib.sha256()
    with open_text(path) as file:
        for lines in blocks_of_lines(file, path, _BLOCK):
            count += len(lines)
            content.update("".join(f"{line}\n" for line in lines).encode())
    return count, content.hexdigest()


def check_lines(numbers: dict[str, int]) -> None:
    """Raises UserError unless files have equally many lines, and some. numbers: lines by path."""
    first, *others = numbers
    for other in others:
        if numbers[other] != numbers[first]:
            raise UserError(
                f"{first} has {numbers[first]} lines and {other} has {numbers[other]}; line n of "
                "both must be of the same sentence"
            )
    if not numbers[first]:
        raise UserError(f"{first} is empty; give text with one sentence a line")


def _text(line: bytes, name: str | os.PathLike, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(
            f"{name}, line {number} is longer than {MAX_LINE_BYTES} bytes; give text with one "
            "sentence a line"
        )
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8: line {number}, byte {error.start + 1} is "
            f"0x{line[error.start]:02x}; convert it to UTF-8"
        ) from error


@contextlib.contextmanager
def _read_errors(name: str | os.PathLike) -> Iterator[None]:
    """Turns errors while a file is read into a UserError."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{name} is damaged or not a gzip file: {error}") from error
    except OSError as error:
        raise cannot_read(name, error) from error
