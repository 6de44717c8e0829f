"""Locks: one process at a time trains in a work directory, or makes files that several need."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TypedDict

from absl import logging

from transformer.system.errors import UserError
from transformer.system.reading import open_plain, parse_json

BEAT = 5.0  # seconds between two signs of life
STALE = 4 * BEAT  # a holder silent for this long counts as dead
_LONGEST = 4096  # bytes of a lock's content


class InUse(UserError):
    """Another live process holds a lock; `holder` names it."""

    def __init__(self, path: Path, holder: str):
        super().__init__(
            f"{path.parent} is in use by {holder}; wait for it, stop it, or give another --workdir"
        )
        self.holder = holder


@contextlib.contextmanager
def lock_workdir(workdir: Path) -> Iterator[None]:
    """Holds WORKDIR/lock; raises InUse if another process does.

    Makes the directory if need be, and removes it if it stays empty.
    """
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileExistsError):
                workdir.mkdir(parents=True)
                stack.callback(_remove_if_empty, workdir)
            stack.enter_context(lock_file(workdir / "lock", wait=False))
        except OSError as error:
            raise UserError(
                f"cannot write {workdir / 'lock'}: {error.strerror}; mend that, or give another "
                "--workdir"
            ) from error
        yield


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[int]:
    """Holds a lock: the file `path`, which names its holder and is removed at the end.

    Yields the file's descriptor. If a child process inherits it and outlives us, the child holds
    the lock on this host.

    While another live process holds the lock, this waits, or raises InUse without `wait`. The
    lock of a dead process is taken over: at once if it was on this host, else after watching it.

    On one host flock decides; it ends with the process. It may not reach other hosts, or be
    missing, so the holder also sets the file's time every BEAT seconds.
    """
    us = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id()}
    content = json.dumps(us).encode()
    with _acquire(path, content, wait) as file:
        stop = threading.Event()

        def give_signs_of_life():
            while not stop.wait(BEAT):
                with contextlib.suppress(OSError):
                    os.utime(file.fileno())

        thread = threading.Thread(target=give_signs_of_life, daemon=True)
        thread.start()
        try:
            yield file.fileno()
        finally:
            stop.set()
            thread.join()  # before the file is closed and its descriptor reused
            with contextlib.suppress(OSError):
                if path.read_bytes() == content:  # nobody has taken it over
                    path.unlink()


def _acquire(path: Path, content: bytes, wait: bool) -> FileIO:
    """The lock file, open, locked, and with our content."""
    while True:
        with contextlib.ExitStack() as stack:
            # 1. Of all processes on all hosts, one creates the file.
            if path.is_symlink():
                raise UserError(f"{path} is a link, and a lock is a plain file; remove it")
            try:
                file, is_new = path.open("x+b", buffering=0), True
            except FileExistsError:
                try:
                    file, is_new = open_plain(path, None, "r+b", buffering=0), False
                except FileNotFoundError:
                    continue  # just released
            stack.enter_context(file)

            # 2. Of those on this host, one has the flock.
            has_flock = _flock(file, path, wait)
            is_certain = is_new or (has_flock and _holder(file.read(_LONGEST))[0] == boot_id())

            # 3. On another host, the holder may be alive.
            if not is_certain:
                _watch(path, wait)
            if not _is_at(path, file):
                continue  # released before we locked it

            # 4. The lock is ours. On NFS other hosts see what we write only after fsync.
            if is_new:
                stack.callback(path.unlink)  # if the next lines fail
            file.seek(0)
            file.write(content)
            file.truncate()
            os.fsync(file.fileno())
            if not is_certain:
                # Several hosts may have written at once: the last one wins.
                time.sleep(BEAT / 5)
                if not _is_at(path, file) or path.read_bytes() != content:
                    continue
            stack.pop_all()
            return file


def _flock(file: FileIO, path: Path, wait: bool) -> bool:
    """Locks the file; False where flock is not available."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            time.sleep(0.1)  # a process that has just locked it writes its name
            raise InUse(path, _holder(file.read(_LONGEST))[1]) from None
        logging.info("waiting for the process that holds %s", path)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _watch(path: Path, wait: bool) -> None:
    """Waits until a holder on another host has released the lock or is dead.

    Raises InUse if the holder is alive and we are not to wait for it.
    """
    last_sign, since = None, 0.0
    while True:
        try:
            # Opened again for every look: only then does NFS ask the server.
            with path.open("rb") as file:
                sign, (boot, name) = os.fstat(file.fileno()).st_mtime, _holder(file.read(_LONGEST))
        except FileNotFoundError:
            return
        # A file without a name was created a moment ago: its owner is about to write it.
        patience = STALE if boot else BEAT / 5
        if last_sign is None:
            logging.warning("%s is held by %s; is it alive? waiting %g s", path, name, patience)
        elif sign != last_sign and not wait:
            raise InUse(path, name)
        if sign != last_sign:
            last_sign, since = sign, time.monotonic()
        if time.monotonic() - since > patience:
            return
        time.sleep(BEAT / 10)


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class _Holder(TypedDict):
    pid: int
    host: str
    boot: str


def _holder(content: bytes) -> tuple[str, str]:
    """The boot id and, for people, the name of the process that wrote a lock file."""
    try:
        holder = parse_json(content, _Holder)
        return holder["boot"], f"process {holder['pid']} on {holder['host']}"
    except ValueError:
        return "", "another process"


def boot_id() -> str:
    """Names this host until its next start; no process lives longer."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
