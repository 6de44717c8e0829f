"""Data in the user's own folder: finding its files, and naming their content."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from transformer.system.errors import UserError
from transformer.system.paths import looked_up


def find(
    folder: Path, names: Mapping[str, Sequence[str]], advice: str, may_lack_one: bool = False
) -> dict[str, list[Path]]:
    """The files of each split that the folder has in all languages, gzipped or not.

    advice: for the UserError if the training files are missing. may_lack_one: if not, UserError
      also for another split of which only one file is missing.
    """
    found = {}
    for split, names_of_split in names.items():
        zipped = [folder / f"{name}.gz" for name in names_of_split]
        paths = [gz if gz.is_file() else gz.with_suffix("") for gz in zipped]
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            found[split] = paths
        elif split == "train" or (len(missing) < len(paths) and not may_lack_one):
            raise UserError(
                f"{missing[0]} is missing{looked_up(missing[0])}, and so is "
                f"{missing[0].name}.gz beside it; put one of them there, or {advice}"
            )
    return found


def fingerprint(paths: Iterable[Path]) -> str:
    """12 hexadecimal digits that change with the files' names and bytes."""
    content = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        content.update(path.name.encode() + b"\n" + digest)
    return content.hexdigest()[:12]
