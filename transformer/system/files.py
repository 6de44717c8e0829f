"""Writing files that are either whole or absent."""

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from transformer.system.errors import UserError


def folder_allows(path: Path) -> bool:
    """Whether `path` can be made: in the nearest folder above it that exists, we write a little."""
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
    """Raises UserError if `write_named` could not write `path`: better before the work than after.

    That is a file without write permission, a folder, or a place where no file can be made; and a
    name without one of the endings, which may be that of an input. Pipes and devices have any name.
    """
    target, number = Path(os.path.realpath(path)), 0
    try:
        is_file = path.is_file() or not path.exists()
        if endings and is_file and path.suffix.lower() not in endings:
            raise UserError(f"{path} must end in {' or '.join(endings)}")
        if path.is_dir():
            number = errno.EISDIR
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
    """Writes a file that a user names. Unlike `write_atomically` it replaces plain files alone.

    Links are followed, pipes and devices are written to, and permissions count.
    """
    check_can_write(path)
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

    Makes the directory if need be. Whatever has the name is replaced, links, too, which is meant
    for our own files. Raises UserError when the disk is full or does not let us.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)  # of a killed process, or a link of somebody else
            with temporary.open("xb") as file:
                file.write(_bytes(content))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(OSError):  # there is none yet
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
    """`write_atomically` of an indented JSON object."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
