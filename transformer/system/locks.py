"""Locks: one process at a time trains in a work directory, or makes files that several need.

The system's flock decides: it ends with its process, however that ends. On NFS it reaches all
hosts; some other network file systems lock each host for itself. In a bucket an object decides,
which only one process can make.
"""

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
from typing import Any

from absl import logging

from transformer.system import buckets
from transformer.system.errors import UserError
from transformer.system.files import host_id, is_alive
from transformer.system.reading import open_plain
from transformer.system.terminal import say

_LONGEST = 200  # bytes of a holder's name
# Seconds between the signs of life of a process that holds a folder in a bucket; after that many
# without one it is dead.
HEARTBEAT, STALE = 20.0, 180.0


@contextlib.contextmanager
def lock_workdir(workdir: Path) -> Iterator[None]:
    """Holds WORKDIR/lock; raises UserError if another process does.

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
        if (address := buckets.address_of(workdir)) != str(workdir):
            lease = _Lease(address)
            stack.enter_context(lease.held())
            stack.enter_context(buckets.held(workdir, lease.check))
        yield


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock: the file `path`, which names its holder and is removed at the end.

    While another process holds the lock, this waits, or raises UserError without `wait`.
    """
    with _locked(path, wait) as file:
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            os.fsync(file.fileno())  # on NFS other hosts see it only then
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # before the lock ends, so that it is ours


def _locked(path: Path, wait: bool) -> FileIO:
    while True:
        if path.is_symlink():
            raise UserError(f"{path} is a link, and a lock is a plain file; remove it")
        file = open_plain(path, None, "a+b", buffering=0)
        try:
            _flock(file, path, wait)
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except FileNotFoundError:  # its holder released it before we locked it
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _flock(file: FileIO, path: Path, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if wait:
            logging.info("waiting for the process that holds %s", path)
            return fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.1)  # a process that has just locked it writes its name
        file.seek(0)
        holder = file.read(_LONGEST).decode(errors="replace") or "another process"
        raise UserError(
            f"{path.parent} is in use by {holder}; wait for it, stop it, or give another --workdir"
        ) from None
    except OSError as error:
        logging.warning("%s cannot be locked (%s); do not train there twice", path, error.strerror)


class _Lease:
    """ADDRESS/lock, an object in a bucket that names its holder and the time."""

    def __init__(self, address: str):
        self._address, self._key = address, f"{address}/{buckets.LEASE}"
        self._files = buckets.system(address)
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._me = {"holder": self._holder, "host": host_id(), "process": os.getpid()}
        self._me["id"] = uuid.uuid4().hex

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raises UserError while another process holds it, which gives signs of life."""
        with buckets.errors(f"cannot write {self._key}"):
            self._take()
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT):
                with contextlib.suppress(Exception):  # the connection may be lost for a while
                    self.check()
                    self._write("overwrite")

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            with contextlib.suppress(Exception):  # then it is free some minutes later
                self.check()
                with contextlib.suppress(FileNotFoundError):  # another was first
                    self._files.rm_file(self._key)

    def check(self) -> None:
        """Raises LeaseLost if another process has it, UserError if it cannot be read."""
        with buckets.errors(f"cannot read {self._key}"):
            found = self._read()
        if found is None or found["id"] != self._me["id"]:
            by = f"held by {found['holder']}" if found else "free, as somebody removed its lock"
            raise buckets.LeaseLost(f"{self._address} is now {by}; this run ends")

    def _take(self) -> None:
        first, start = None, time.monotonic()
        while True:
            if (found := self._read()) is None:
                with contextlib.suppress(FileExistsError):  # another was first
                    return self._write("create")
                continue
            if found["id"] == self._me["id"]:
                return  # the answer to a first try was lost
            is_dead = found["host"] == host_id() and not is_alive(found["process"])
            if is_dead or time.monotonic() - start > STALE:
                with contextlib.suppress(FileNotFoundError):  # another was first
                    self._files.rm_file(self._key)
                continue
            if first is None:
                say(f"{self._address} is held by {found['holder']}; waiting for a sign of life")
            elif found != first:
                raise UserError(
                    f"{self._address} is in use by {found['holder']}; wait for it, stop it, or "
                    "give another --workdir"
                )
            first = found
            time.sleep(1)

    def _write(self, mode: str) -> None:
        content = json.dumps(self._me | {"time": time.time()}).encode()
        self._files.pipe_file(self._key, content, mode=mode)

    def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self._files.cat_file(self._key))
        return None
