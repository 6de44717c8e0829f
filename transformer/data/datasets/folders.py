"""Data in the user's own folder: finding its files, and naming their content."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path


def choose(folder: Path, names: Sequence[str]) -> list[Path]:
    """A path for each name: of its gzipped file (name + ".gz") if there is one."""
    zipped = [folder / f"{name}.gz" for name in names]
    return [gz if gz.is_file() else gz.with_suffix("") for gz in zipped]


def fingerprint(paths: Iterable[Path]) -> str:
    """12 hexadecimal digits that change with the files' names and bytes."""
    content = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        content.update(path.name.encode() + b"\n" + digest)
    return content.hexdigest()[:12]
