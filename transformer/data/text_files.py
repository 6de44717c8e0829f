"""Reading text, plain or packed, line by line.

A file whose name ends in .gz, .xz or .zst is packed, in capitals, too.

A line ends only at a line feed. Python also takes U+2028, U+0085, form feeds and lone carriage
returns for line ends, but they occur inside real sentences. The carriage return before a line
feed and a byte-order mark are not part of the text.

Everything here raises UserError for a file that cannot be read, is damaged or is not UTF-8.
"""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import IO, NamedTuple

from transformer.data.remembered import Facts, of_file
from transformer.system.errors import UserError
from transformer.system.paths import cannot_read

MAX_LINE_BYTES = 1 << 24  # so that a file without line feeds is not read whole
_BLOCK = 1000  # lines
_MANY_LINES = 1 << 20  # bytes
_CHUNK = 1 << 16  # bytes: the capacity of a pipe
_PATIENCE = 0.01  # seconds: a steady writer is not slower


class Packing(NamedTuple):
    """A way to pack a file. A packed file may have several parts, one after the other."""

    name: str
    open: Callable[[str | os.PathLike], IO[bytes]]
    pack: Callable[[bytes], bytes]


class _Zstd(io.BufferedReader):
    """The unpacked content of a file."""

    def __init__(self, path: str | os.PathLike):
        import pyarrow  # TFDS brings it, but it takes a while to import

        self._file = io.FileIO(path)
        super().__init__(pyarrow.CompressedInputStream(self._file, "zstd"), _CHUNK)

    def fileno(self) -> int:
        return self._file.fileno()


def _pack_zstd(content: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(content, "zstd", asbytes=True)


PACKINGS = {
    ".gz": Packing("gzip", gzip.open, lambda content: gzip.compress(content, mtime=0)),
    ".xz": Packing("xz", lzma.open, lzma.compress),
    ".zst": Packing("zstd", _Zstd, _pack_zstd),
}


def packing(path: str | os.PathLike) -> Packing | None:
    """The packing that a file's name tells; None for a plain file."""
    return PACKINGS.get(PurePath(os.fspath(path).lower()).suffix)


def packed(path: str | os.PathLike, content: bytes) -> bytes:
    """What a file of this name has to hold for its content."""
    found = packing(path)
    return found.pack(content) if found else content


def unpacked_name(path: str | os.PathLike) -> str:
    """A file's name in lower case, without the ending of a packing: x.jsonl for /a/X.JSONL.gz."""
    name = PurePath(os.fspath(path).lower())
    return name.stem if packing(path) else name.name


def ending(path: str | os.PathLike) -> str:
    """The ending of `unpacked_name`: .jsonl for X.JSONL.gz."""
    return PurePath(unpacked_name(path)).suffix


def open_text(path: str | os.PathLike) -> IO[bytes]:
    """Opens a text file, plain or packed, for its bytes."""
    with read_errors(path):
        found = packing(path)
        return found.open(path) if found else open(path, "rb")


def input_of(path: str | None) -> tuple[IO[bytes], str]:
    """The file of an --input flag, standard input if there is none; and its name in errors."""
    if path is not None:
        return open_text(os.path.expanduser(path)), path
    if sys.stdin is None:  # closed by the shell
        raise UserError("standard input is closed; give the text there, or --input")
    return sys.stdin.buffer, "standard input"


def blocks_of_lines(file: IO[bytes], name: str | os.PathLike, size: int) -> Iterator[list[str]]:
    """The lines of an open file, `size` at a time; `name` is its name in errors."""
    all_lines, number = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 0
    while True:
        lines = []
        with read_errors(name):
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
        with read_errors(name):
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


def count_lines(file: IO[bytes], name: str | os.PathLike) -> int:
    """The approximate number of lines left to read; 0 if counting would consume them."""
    try:
        if packing(name):
            with open_text(name) as again:
                return sum(chunk.count(b"\n") for chunk in iter(lambda: again.read(_CHUNK), b""))
        descriptor = file.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return 0
        count, place = 0, os.lseek(descriptor, 0, os.SEEK_CUR)
        while chunk := os.pread(descriptor, _CHUNK, place):
            count, place = count + chunk.count(b"\n"), place + len(chunk)
        return count
    except (OSError, EOFError, zlib.error, lzma.LZMAError, UserError):  # reading will report it
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


def check_is_file(path: str) -> None:
    """Raises UserError for a folder, and for a pipe: data are read more than once."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} is not a file; give a file, plain or packed")


def count_and_hash(path: str, *, counts: Callable[[str], bool] | None = None) -> tuple[int, str]:
    """The number of lines of a text file, and the SHA-256 of their text.

    counts: whether a line counts; by default each does.
    """
    check_is_file(path)

    def find() -> Facts:
        count, content = _count_and_hash(path, counts)
        return {"count": count, "content": content}

    found = of_file(path, ["text", 1, ending(path), counts.__name__ if counts else ""], find)
    return int(found["count"]), str(found["content"])


def _count_and_hash(path: str, counts: Callable[[str], bool] | None) -> tuple[int, str]:
    count, content, mark = 0, hashlib.sha256(), codecs.BOM_UTF8
    with open_text(path) as file, read_errors(path):
        while block := file.read(_MANY_LINES) + (rest := file.readline(MAX_LINE_BYTES)):
            block, mark = block.removeprefix(mark), b""
            if b"\r" in block:  # found at once, where there is none
                block = block.replace(b"\r\n", b"\n")
            if not block.endswith(b"\n"):
                block = block.removesuffix(b"\r") + b"\n"
            try:
                text = block.decode()
            except UnicodeDecodeError:
                text = None
            if text is None or len(rest) > MAX_LINE_BYTES - _MANY_LINES:  # perhaps too long
                for _ in read_lines(path):  # raises the error that names the line
                    pass
            content.update(block)
            if counts:
                count += sum(1 for _ in filter(counts, text.split("\n")[:-1]))
            else:
                count += block.count(b"\n")
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
def read_errors(
    name: str | os.PathLike, kind: str = "", *errors: type[Exception]
) -> Iterator[None]:
    """Turns errors while a file is read into a UserError.

    kind: of a file that is not text; errors: those of a damaged one.
    """
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError, *errors) as error:
        if isinstance(error, OSError) and error.errno:
            raise cannot_read(name, error) from error
        if found := packing(name):
            kind = kind or found.name
        raise UserError(f"{name} is damaged or not a {kind} file: {error}") from error
