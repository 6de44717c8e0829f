"""One training process per work directory."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from transformer.system.errors import UserError

BEAT = 5.0  # seconds between two signs of life
STALE = 4 * BEAT  # without one for so long, the holder is dead


@contextlib.contextmanager
def lock_workdir(workdir: Path) -> Iterator[None]:
    """Holds WORKDIR/lock; makes the directory if need be, and removes it if it stays empty.

    The lock of a dead process is taken over: at once if it was on this host or has been silent
    for STALE seconds, else after watching it. Raises UserError if a live process holds the
    lock, and if it cannot be written.

    On one host flock decides; it ends with the process. It may not reach other hosts, or be
    missing, so the holder also sets the file's time every BEAT seconds.
    """
    path = workdir / "lock"
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):
                workdir.mkdir(parents=True)
                stack.callback(_remove_if_empty, workdir)
            file = stack.enter_context(_acquire(path))
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror}; mend that, or give another --workdir"
            ) from error
        stack.callback(_release, path, file)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(file, stop), daemon=True)
        beat.start()
        stack.callback(beat.join)  # before the file is closed and its number is another's
        stack.callback(stop.set)
        yield


def _acquire(path: Path) -> FileIO:
    """Our lock file, open, locked and in its place."""
    # It gets its name when it is whole and locked, so that no live lock lacks either.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    file = temporary.open("xb", buffering=0)
    try:
        content = {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot_id()}
        file.write(json.dumps(content).encode())
        os.fsync(file.fileno())  # NFS shows it to other hosts only then
        with contextlib.suppress(OSError):  # no locks on this file system
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _take_place(path, temporary, file)
    except BaseException:
        file.close()
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return file


def _take_place(path: Path, temporary: Path, file: FileIO) -> None:
    """Renames our file to `path` when no live process holds that."""
    seen, seen_at = None, 0.0
    while True:
        # 1. No lock: of all processes on all hosts, one creates the file; whole and locked, so
        #    that nobody takes it for a dead one, where the file system has links.
        try:
            os.link(temporary, path)
            return
        except FileExistsError:
            pass
        except OSError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                temporary.replace(path)
                return

        # 2. Opened anew for every look: that is when NFS asks the server for the time.
        try:
            other = path.open("r+b", buffering=0)
        except FileNotFoundError:
            continue  # just released
        with other:
            has_flock = True
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)  # whoever is just taking it over puts its own name there
                raise _refusal(path) from None
            except OSError:
                has_flock = False
            status, (boot, name) = os.fstat(other.fileno()), _holder(other.read())
            os.utime(file.fileno())  # by the clock of the file system, not of this host
            silence = os.fstat(file.fileno()).st_mtime - status.st_mtime
            sign = status.st_ino, status.st_mtime_ns
            is_certain = has_flock and boot == _boot_id()
            if not _is_at(path, other):
                continue  # released or taken over before we locked it
            if seen not in (None, sign):
                raise _refusal(path)
            if is_certain or silence > STALE or (seen and time.monotonic() - seen_at > STALE):
                temporary.replace(path)
                break

        # 3. It may be alive: watch it.
        if seen is None:
            seen, seen_at = sign, time.monotonic()
            print(f"lock     held by {name}; is it alive? waiting up to {STALE:g} s", flush=True)
        time.sleep(BEAT / 10)

    # 4. Where flock does not reach, several may have done that at once: the last one has it.
    if not is_certain:
        time.sleep(BEAT / 5)
        if not _is_at(path, file):
            raise _refusal(path)


def _release(path: Path, file: FileIO) -> None:
    with contextlib.suppress(OSError):
        if _is_at(path, file):  # nobody has taken us for dead
            path.unlink()


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _beat(file: FileIO, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(file.fileno())


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _holder(content: bytes) -> tuple[str, str]:
    """The boot id and, for people, the name of the process that wrote a lock file."""
    try:
        holder = json.loads(content)
        return holder["boot"], f"process {holder['pid']} on {holder['host']}"
    except (ValueError, TypeError, KeyError):
        return "", "another process"


def _refusal(path: Path) -> UserError:
    name = "another process"
    with contextlib.suppress(OSError):
        name = _holder(path.read_bytes())[1]
    return UserError(
        f"{path.parent} is in use by {name}, which trains in it; wait for it, stop it, or give "
        "another --workdir"
    )


def _boot_id() -> str:
    """Names this host until it is started anew; no process lives longer."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
