"""Locks: one process at a time trains in a work directory, or makes files that several need.

The system's flock decides: it ends with its process, however that ends. On NFS it reaches all
hosts; some other network file systems lock each host for itself.
"""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from absl import logging

from transformer.system.errors import UserError
from transformer.system.reading import open_plain

_LONGEST = 200  # bytes of a holder's name


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
