"""Writing files that are either whole or absent."""

import json
import os
from pathlib import Path
from typing import Any

from transformer.system.errors import UserError


def folder_allows(path: Path) -> bool:
    """Whether `path` can be made: the nearest folder above it that exists lets us write."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return folder.is_dir() and os.access(folder, os.W_OK)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, under a temporary name beside it, then renames it.

    Makes the directory if need be. Raises UserError when the disk is full or does not let us.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; make room for it, or name another place"
        ) from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """`write_atomically` of an indented JSON object."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
