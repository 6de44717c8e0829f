"""Writing files that are either whole or absent."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes UTF-8 text to a temporary name beside `path`, then renames it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
