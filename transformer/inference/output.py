"""Output of lines: to standard output, a pipe or device, or a file that can be continued."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import select
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

from transformer.data.text_files import packed
from transformer.system.errors import UserError
from transformer.system.files import leftovers_of, remove_leftovers, write_atomically
from transformer.system.reading import MISSING, Count, read_json
from transformer.system.terminal import is_terminal, printable, say

_CHUNK = 1 << 20


class Done(NamedTuple):
    """The progress of an output."""

    lines: Count = 0  # of the input
    input_sha256: str = ""  # of these lines
    size: Count = 0  # size of the output in bytes
    sha256: str = ""  # of these bytes


class Note(TypedDict):
    """The content of the hidden file beside an incomplete output."""

    identity: dict[str, Any]
    done: Done


class Output:
    """An open descriptor, written to without a buffer. The name of a packed file packs it.

    done: the part that an earlier start has written.
    """

    def __init__(self, descriptor: int, name: str):
        self.name = name
        self.done = Done()
        self._descriptor = descriptor
        self.is_terminal = is_terminal(lambda: descriptor)

    def begin(self, identity: Callable[[], Mapping[str, Any]]) -> None:
        """Must precede `write`. identity: returns the settings that the output depends on."""

    def write(self, text: str, lines: int, input_sha256: str) -> None:
        """Writes all of the text, which completes `lines` lines of the input."""
        del lines, input_sha256  # this output cannot be continued
        if self.is_terminal:
            text = "".join(f"{printable(line)}\n" for line in text.split("\n")[:-1])
        self._write(text)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self.close()

    def _write(self, text: str) -> bytes:
        """Writes the text; returns the bytes written."""
        data = packed(self.name, text.encode(errors="replace"))
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # another process made it non-blocking
                    select.select([], [self._descriptor], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"cannot write {self.name}: {error.strerror}; mend that, then start again"
            ) from error
        return data


class FileOutput(Output):
    """A plain file. Until it is complete, a hidden file beside it records its progress.

    A later start continues the file if the identity is the same, or else raises UserError.
    """

    def __init__(self, descriptor: int, path: Path, is_new: bool):
        super().__init__(descriptor, str(path))
        self._is_new, self._content = is_new, None
        self._note = path.with_name(f".{path.name}.unfinished")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is being written by another process; wait for it") from None
        except OSError:  # a file system without locks
            pass
        remove_leftovers(leftovers_of(self._note))
        self.done, self._begun_as = self._earlier()

    def begin(self, identity: Callable[[], Mapping[str, Any]]) -> None:
        self._identity = now = json.loads(json.dumps(identity()))
        was = self._begun_as
        differ = [
            f"{name:.60} was {was.get(name)!s:.60} and is {now.get(name)!s:.60}"
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        ]
        if self.done.lines and differ:
            raise UserError(
                f"{self.name} is unfinished, and was begun otherwise ({'; '.join(differ)}); "
                "continue it as it was begun, or remove it to begin anew"
            )
        content = self._sha256_of(self.done.size)
        if self.done.sha256 not in ("", content.hexdigest()):
            raise UserError(
                f"{self.name} was changed since it was left unfinished; move it away to begin anew"
            )
        # The note first: a kill in between must not leave a note that counts text already cut off.
        self._write_note()
        os.ftruncate(self._descriptor, self.done.size)
        os.lseek(self._descriptor, self.done.size, os.SEEK_SET)
        self._content = content

    def write(self, text: str, lines: int, input_sha256: str) -> None:
        data = self._write(text)
        _sync(self._descriptor)  # the note must not be ahead of the file
        self._content.update(data)
        size, sha256 = self.done.size + len(data), self._content.hexdigest()
        self.done = Done(lines, input_sha256, size, sha256)
        self._write_note()

    def __exit__(self, kind: type | None, *_) -> None:
        if self._content is not None:  # begun: lines that an interrupt kept from the note go
            with contextlib.suppress(OSError):  # a later start does it
                os.ftruncate(self._descriptor, self.done.size)
        super().__exit__(kind)
        if kind is None or not self.done.lines:
            self._note.unlink(missing_ok=True)
        if kind is not None and not self.done.lines and self._is_new:
            Path(self.name).unlink(missing_ok=True)
        elif kind is KeyboardInterrupt and self.done.lines:
            say(f"{self.name} has {self.done.lines} lines; the same command continues it")

    def _earlier(self) -> tuple[Done, dict[str, Any]]:
        """The progress and identity of an earlier, unfinished start."""
        try:
            mend = f"remove it to begin {self.name} anew"
            note = read_json(self._note, self._note.parent, Note, mend)
        except MISSING:
            return Done(), {}
        if os.fstat(self._descriptor).st_size == 0:  # removed, or emptied by the shell
            return Done(), {}
        return Done(**note["done"]), note["identity"]

    def _sha256_of(self, size: int) -> Any:
        content = hashlib.sha256()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        while size and (chunk := os.read(self._descriptor, min(size, _CHUNK))):
            content.update(chunk)
            size -= len(chunk)
        return content

    def _write_note(self) -> None:
        note = {"identity": self._identity, "done": self.done._asdict()}
        write_atomically(self._note, json.dumps(note, indent=1))


def open_output(path: str | None, stdout: Any, file: Any) -> Output:
    """Opens the file that --output names; standard output if None.

    A link is followed, a pipe or device is written to, a file is kept; `begin` then replaces its
    content. Raises UserError for a path that cannot be written, and for the open input file.
    """
    if stdout is None and path is None:  # closed by the shell
        raise UserError("standard output is closed; leave it open, or give --output")
    target = None if path is None else Path(path).expanduser()
    is_new = False
    try:
        # /dev/stdout, if opened again, would be written from its beginning.
        if target is None or (stdout is not None and _is_same(target, stdout)):
            descriptor, is_file = os.dup(stdout.fileno()), False
        elif target.exists() and not target.is_file():
            descriptor, is_file = os.open(target, os.O_WRONLY | os.O_CLOEXEC), False
        else:
            target = Path(os.path.realpath(target))  # Path.resolve fails for a loop
            is_new, is_file = not target.exists(), True
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another --output") from error
    try:
        if _is_same(descriptor, file) and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError("the output is the input file; name another --output")
        if is_file:
            return FileOutput(descriptor, target, is_new)
        return Output(descriptor, path or "standard output")
    except UserError:
        os.close(descriptor)
        raise


def _is_same(path: Path | int, file: Any) -> bool:
    """True if a path or descriptor leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except (OSError, ValueError):  # no such path, or the file has no descriptor
        return False


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # it cannot be synchronised
            raise
