"""Writing files that are either whole or absent."""

import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer.system.errors import UserError

# Work directories that come with the project; nothing is written there.
PRETRAINED = Path(__file__).resolve().parents[1] / "pretrained"

ABANDONED = 86400.0  # seconds without a write after which any process counts as dead
# Groups: host, process. Earlier versions left the host out.
_TEMPORARY = re.compile(r".+?(?:\.([0-9a-f]{8}))?\.([1-9]\d{0,6})\.(?:tmp|export)")


def user_caches() -> Path | None:
    """Our folder among the user's caches; None if the user has no home."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "transformer-jax") if os.path.isabs(caches) else None


def temporary_beside(path: Path, ending: str = "tmp") -> Path:
    """The name of a file or folder until it is whole; it tells `remove_leftovers` the owner."""
    return path.with_name(f"{path.name}.{host_id()}.{os.getpid()}.{ending}")


def leftovers_of(path: Path) -> Iterable[Path]:
    """Files beside `path` that may be leftovers of processes that wrote it."""
    return path.parent.glob(f"{glob.escape(path.name)}.*")


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes the paths that are temporary files of dead processes, judging by their names.

    Nothing is known of processes on another host, or from before this host's last start, and
    another process may have the number of a dead one: such files go after a day without a write.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found += paths
    for path in found:
        match = _TEMPORARY.fullmatch(path.name)
        with contextlib.suppress(OSError):  # others may remove them, too, or they are not ours
            if match and _is_left(path, match[1], int(match[2])):
                path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def _is_left(path: Path, host: str | None, process: int) -> bool:
    if host == host_id() and not is_alive(process):
        return True
    return time.time() - path.lstat().st_mtime > ABANDONED


def is_alive(process: int) -> bool:
    """True if this host has a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        pass
    return True


@functools.cache
def host_id() -> str:
    """Names this host until its next start, and the container, which numbers its processes."""
    found = [socket.gethostname()]
    with contextlib.suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        found.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(found).encode()).hexdigest()[:8]


def folder_allows(path: Path) -> bool:
    """True if `path` can be made; tries a small write in the nearest existing folder above."""
    try:
        _write_a_little(path)
    except OSError:
        return False
    return True


def _write_a_little(path: Path) -> None:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    with tempfile.TemporaryFile(dir=folder) as file:  # without a name, where that is possible
        file.write(bytes(4096))
        file.flush()


def check_can_write(path: Path, *endings: str) -> None:
    """Raises UserError if `write_named` could not write `path`; call it before the work.

    It refuses a file without write permission, a folder, and a path where no file can be made;
    also a name without one of the endings, as it may be an input. Pipes and devices may have any
    name.
    """
    target, number = Path(os.path.realpath(path)), 0
    try:
        is_file = path.is_file() or not path.exists()
        if endings and is_file and path.suffix.lower() not in endings:
            raise UserError(f"{path} must end in {' or '.join(endings)}")
        if path.is_dir():
            number = errno.EISDIR
        elif PRETRAINED in target.parents:
            number = errno.EROFS
        elif target.is_symlink():  # in a circle
            number = errno.ELOOP
        elif path.exists() and not os.access(path, os.W_OK):
            number = errno.EACCES
        if number:
            raise OSError(number, os.strerror(number))
        if is_file:
            _write_a_little(target)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_named(path: Path, content: str | bytes) -> None:
    """Writes a file that a user names. Unlike `write_atomically` it replaces only plain files.

    It follows links, writes to pipes and devices, and respects permissions.
    """
    check_can_write(path)
    remove_leftovers(leftovers_of(Path(os.path.realpath(path))))
    if not path.exists() or (path.is_file() and path.stat().st_nlink == 1):
        return write_atomically(Path(os.path.realpath(path)), content)
    try:
        with path.open("wb") as file:
            file.write(_bytes(content))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, under a temporary name beside it, then renames it.

    Makes the directory if need be. Replaces anything of that name, links included, so it is only
    for our own files. Raises UserError when the disk is full or refuses the write.
    """
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)  # perhaps somebody else's link
            with temporary.open("xb") as file:
                file.write(_bytes(content))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(OSError):  # no such file yet
                temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {path}: {error.strerror}; make room for it, or name another place"
    )


def _bytes(content: str | bytes) -> bytes:
    return content.encode(errors="replace") if isinstance(content, str) else content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """`write_atomically` for an indented JSON object."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
