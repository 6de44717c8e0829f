"""Where lines go: standard output, a pipe or device, or a file that grows and can be continued."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically
from transformer.system.terminal import is_terminal, printable, say

_CHUNK = 1 << 20


class Done(NamedTuple):
    """How far an output is."""

    lines: int = 0  # of the input
    input_sha256: str = ""  # of these
    size: int = 0  # of the output, in bytes
    sha256: str = ""  # of these


class Output:
    """An open descriptor, written to without a buffer.

    done: what is there already, from an earlier start.
    """

    def __init__(self, descriptor: int, name: str):
        self.name = name
        self.done = Done()
        self._descriptor = descriptor
        self.is_terminal = is_terminal(lambda: descriptor)

    def write(self, text: str, lines: int, input_sha256: str) -> None:
        """Writes all of the text, which completes so many lines of the input."""
        del lines, input_sha256  # nobody can continue this
        if self.is_terminal:
            text = "".join(f"{printable(line)}\n" for line in text.split("\n")[:-1])
        with _no_interrupt():
            self._write(text.encode(errors="replace"))

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # somebody has made it non-blocking
                    select.select([], [self._descriptor], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"cannot write {self.name}: {error.strerror}; mend that, then start again"
            ) from error


class FileOutput(Output):
    """A plain file. A hidden file beside it says how far it is, until it is complete.

    identity: what the output depends on, beside its input. A later start continues the file if
      that is the same, and raises UserError if it is not.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]):
        self._is_new = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; name another file") from error
        super().__init__(descriptor, str(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is being written by another process; wait for it") from None
        except OSError:  # a file system without locks
            pass
        self._identity = json.loads(json.dumps(identity))
        self._note = path.with_name(f".{path.name}.unfinished")
        self._can_note = True
        try:
            self.done = self._earlier()
            self._content = self._sha256_of(self.done.size)
            if self.done.sha256 not in ("", self._content.hexdigest()):
                raise UserError(
                    f"{path} was changed since it was left unfinished; move it away to begin anew"
                )
            # The note first: a kill in between must not leave a note about what is cut off.
            self._write_note()
            os.ftruncate(descriptor, self.done.size)
            os.lseek(descriptor, self.done.size, os.SEEK_SET)
        except BaseException:
            self.close()
            raise

    def write(self, text: str, lines: int, input_sha256: str) -> None:
        data = text.encode(errors="replace")
        with _no_interrupt():
            self._write(data)
            _sync(self._descriptor)  # the note must not be ahead of the file
            self._content.update(data)
            size, sha256 = self.done.size + len(data), self._content.hexdigest()
            self.done = Done(lines, input_sha256, size, sha256)
            self._write_note()

    def __exit__(self, kind: type | None, *_) -> None:
        super().__exit__(kind)
        if kind is None or not self.done.lines:
            self._note.unlink(missing_ok=True)
        if kind is not None and self._is_new and not self.done.lines:
            Path(self.name).unlink(missing_ok=True)
        elif kind is KeyboardInterrupt:
            say(f"{self.name} has {self.done.lines} lines; the same command continues it")

    def _earlier(self) -> Done:
        """How far an earlier start came, if there was one that did not end."""
        try:
            note = json.loads(self._note.read_bytes())
            done, identity = Done(**note["done"]), note["identity"]
        except FileNotFoundError:
            return Done()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{self._note} cannot be read ({error}); remove it to begin {self.name} anew"
            ) from error
        if os.fstat(self._descriptor).st_size == 0:  # removed, or emptied by the shell
            return Done()
        names = sorted(identity.keys() | self._identity.keys())
        absent = "absent"
        differ = [
            f"{name} was {identity.get(name, absent)} and is {self._identity.get(name, absent)}"
            for name in names
            if identity.get(name, absent) != self._identity.get(name, absent)
        ]
        if differ:
            raise UserError(
                f"{self.name} is unfinished, and was begun otherwise ({'; '.join(differ)}); "
                "continue it as it was begun, or remove it to begin anew"
            )
        return done

    def _sha256_of(self, size: int) -> Any:
        content = hashlib.sha256()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        while size and (chunk := os.read(self._descriptor, min(size, _CHUNK))):
            content.update(chunk)
            size -= len(chunk)
        return content

    def _write_note(self) -> None:
        if not self._can_note:
            return
        note = json.dumps({"identity": self._identity, "done": self.done._asdict()}, indent=1)
        try:
            write_atomically(self._note, note)
        except UserError as error:
            if self.done.lines:  # the disk is full, rather than a folder that we may not write to
                raise
            self._can_note = False
            say(f"warning: {error}. If this is stopped, it cannot be continued")


def open_output(path: str | None, stdout: Any, identity: Callable[[], Mapping[str, Any]]) -> Output:
    """Opens what --output names; standard output if None.

    A link is followed, a pipe or device is written to, a file is kept and its content replaced.
    See FileOutput for `identity`. Raises UserError for what cannot be written.
    """
    if path is None:
        if stdout is None:  # closed by the shell
            raise UserError("standard output is closed; leave it open, or give --output")
        return Output(os.dup(stdout.fileno()), "standard output")
    target = Path(path).expanduser()
    try:
        if (number := _own_descriptor(target, stdout)) is not None:
            # Opened again, a file would be written from its beginning.
            return Output(os.dup(number), path)
        if target.exists() and not target.is_file():
            return Output(os.open(target, os.O_WRONLY | os.O_CLOEXEC), path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file") from error
    return FileOutput(_followed(target), identity())


def _followed(path: Path) -> Path:
    """What a link leads to, which need not be there."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop


def _own_descriptor(path: Path, stdout: Any) -> int | None:
    """The number of a descriptor of this process that the path stands for, as /dev/stdout does."""
    if match := re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", str(path)):
        return int(match[1])
    if stdout is None or not path.exists():
        return None
    return stdout.fileno() if os.path.samestat(path.stat(), os.fstat(stdout.fileno())) else None


def check_output(path: str | None, stdout: Any, file: Any) -> None:
    """Raises UserError if what --output names cannot be written, or is the open input file."""
    if path is not None:
        target = Path(path).expanduser()
        is_bad = target.is_dir() or not (target.exists() or folder_allows(_followed(target)))
        if is_bad or (target.exists() and not os.access(target, os.W_OK)):
            raise UserError(f"--output={path} cannot be written; name a file in another place")
    try:
        source = os.fstat(file.fileno())
        name = path and Path(path).expanduser()
        other = os.stat(name) if name else os.fstat(stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return  # one of them is no file, or is not there yet
    if stat.S_ISREG(source.st_mode) and os.path.samestat(source, other):
        raise UserError("the output is the input file; name another --output")


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the block has ended; a second one ends the process at once.

    So a line that is being written is written whole. Whoever reads it may be stuck.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = []

    def note(number: int, frame: Any) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what cannot be synchronised
            raise
