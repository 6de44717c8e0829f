"""The folders of outputs: texts, one example a line, and scores.json."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.data.test_sets import Input
from transformer.runs.trusted_paths import absolute
from transformer.system.buckets import address_of
from transformer.system.errors import UserError
from transformer.system.files import (
    check_can_write,
    leftovers_of,
    remove_leftovers,
    temporary_beside,
    write_atomically,
)
from transformer.system.reading import MISSING, checked, read_json
from transformer.tasks.task import Outputs

LATEST = "latest"  # below WORKDIR/eval: a link to the folder written last
DIGITS = 8  # of the hashes in folder names


class Destination(NamedTuple):
    """A folder for outputs: WORKDIR/eval/<name>/, or OUTPUT_DIR/<name>/.

    inputs: the inputs scored beside the run's own data. If the folder has scores of other inputs, a
    hash of these is added to its name.
    """

    place: Path
    name: str
    inputs: Mapping[str, Input] = {}

    @classmethod
    def of(
        cls, workdir: Path | None, output_dir: Path | None, name: str, inputs: Mapping[str, Input]
    ) -> "Destination":
        """Raises UserError for a link in a stranger's work directory. Give one of both folders."""
        if not output_dir:
            _refuse_link(place := workdir / "eval")
            return cls(place, name, inputs)
        # Several runs may share it.
        run = {"workdir": Input(absolute(address_of(workdir)))} if workdir else {}
        return cls(output_dir, name, {**inputs, **run})

    def check(self) -> None:
        """Raises UserError if outputs cannot be written."""
        folder = self._folder()
        try:
            check_can_write(folder / "scores.json")
        except UserError as error:
            raise UserError(f"{error} with --output_dir") from error

    def write(self, outputs: Outputs, scores: Mapping[str, Any]) -> Path:
        """Writes the texts, and scores.json last; returns the folder."""
        folder = self._folder()
        latest = folder.with_name(LATEST)
        files = {f"{name}.txt": one_a_line(lines) for name, lines in outputs.texts.items()}
        if self.inputs:
            inputs = {role: one._asdict() for role, one in self.inputs.items()}
            scores = {**scores, "inputs": inputs}
        files |= {**outputs.files, "scores.json": json.dumps(scores, indent=2) + "\n"}
        for path in (*(folder / file for file in files), latest):
            remove_leftovers(leftovers_of(path))  # only ours: --output_dir may be anywhere
        for file, content in files.items():
            write_atomically(folder / file, content)
        new = temporary_beside(latest)
        with contextlib.suppress(OSError):  # bucket file systems have no links
            new.unlink(missing_ok=True)
            new.symlink_to(folder.name)
            new.replace(latest)
        return folder

    def _folder(self) -> Path:
        folder = self.place / self.name.replace("/", "_")
        own = {role: one.path or one.sha256 for role, one in self.inputs.items()}
        if _inputs_in(folder) not in (None, own):
            folder = folder.with_name(f"{folder.name}-{digest(json.dumps(own, sort_keys=True))}")
        _refuse_link(folder)
        return folder


def one_a_line(lines: Sequence[str]) -> str:
    return "".join(f"{line.replace(chr(10), ' ')}\n" for line in lines)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link, which outputs do not follow; remove it, or move what it leads "
            "to there, or give another place with --output_dir"
        )


def _inputs_in(folder: Path) -> dict[str, str] | None:
    """The inputs behind the scores in a folder; None if there are none that can be read."""
    try:
        scores = read_json(folder / "scores.json", folder, dict[str, Any])
        inputs = checked(scores.get("inputs", {}), dict[str, Input])
        return {role: one["path"] or one["sha256"] for role, one in inputs.items()}
    except (*MISSING, ValueError, UserError):
        return None
