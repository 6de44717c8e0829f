"""A folder of checkpoints: Orbax writes the arrays, and digests reveal damage.

  <step>/params, opt_state, extra, ema    arrays; the last three only where they are not empty
  <step>/record/record.json          the notes given to `begin`, shapes and digests of the arrays
  <step>/scores.json                 validation scores, written later

A checkpoint gets its final name only when it is complete.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from transformer.models.functional import Params
from transformer.runs.integrity import digest, read_signed, signed
from transformer.system import buckets
from transformer.system.distributed import from_first, in_all, is_first
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.reading import MISSING, Count, Number

CHECKPOINTS = "checkpoints"  # the folder in a work directory
# Orbax raises these, in its main thread and its others, when it cannot write.
SAVE_ERRORS = (OSError, ValueError, jax.errors.JaxRuntimeError)
SECONDS_UNTIL_VISIBLE = 60.0  # for a new directory, on all hosts of a network file system
ITEMS = ("params", "opt_state", "extra", "ema")  # fields of TrainState
_HALF_WRITTEN, _DELETED, _DAMAGED = ".orbax-checkpoint-tmp", ".deleted", ".damaged"
_RECORD, _SCORES = "record.json", "scores.json"
_DISK = "ENOSPC EDQUOT EFBIG EROFS EACCES EPERM EIO ENOENT ENOTDIR ENXIO ESTALE ETIMEDOUT EMFILE"
_DISK_ERRORS = "|".join(os.strerror(getattr(errno, name)) for name in _DISK.split())
# The subset that says nothing about the content of the disk.
_UNREADABLE = "EACCES EPERM EIO ENXIO ESTALE ETIMEDOUT EMFILE ENFILE"
_UNREADABLE_ERRORS = "|".join(os.strerror(getattr(errno, name)) for name in _UNREADABLE.split())


class _Record(TypedDict):
    step: Count
    scheduled: bool
    shapes: dict[str, dict[str, str]]
    digests: dict[str, str]


class _Patience(TypedDict):
    best: Number | None
    without_better: Count
    reductions: NotRequired[Count]


class Damaged(Exception):
    """A checkpoint is not as it was saved; the message says how."""


class Store:
    """Reads and writes checkpoints in one folder; saving runs in the background."""

    def __init__(self, directory: Path):
        self.directory = directory
        # Then each process of a job has a folder of its own, and process 0 saves for all.
        self._is_in_bucket = buckets.address_of(directory) != str(directory)
        self.saving: int | None = None  # the step being saved
        self._checkpointer = self._new_checkpointer()

    # --- Saving ---

    def prepare(self) -> None:
        """Makes the folder; removes what a killed process left half-written or half-removed."""
        if is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            self.remove_leftovers()

    def begin(self, step: int, items: Mapping[str, Any], **said: Any) -> None:
        """Begins to save trees of arrays and notes about them; may raise SAVE_ERRORS."""
        record = {
            "step": step,
            **said,
            "shapes": {name: _shapes(item) for name, item in items.items()},
            "digests": {name: digest(item) for name, item in items.items()},
        }
        self.saving = step
        filled = _filled(items)
        if self._is_in_bucket and jax.process_count() > 1:
            filled = {name: _gathered(item) for name, item in filled.items()}
            if not is_first():
                return
        arrays = {name: ocp.args.StandardSave(item) for name, item in filled.items()}
        arguments = ocp.args.Composite(record=ocp.args.JsonSave(signed(record)), **arrays)
        self._checkpointer.save(self.directory / str(step), args=arguments)

    def wait(self) -> None:
        """Returns when the current save is on the disk; may raise SAVE_ERRORS."""
        self._checkpointer.wait_until_finished()
        self.saving = None

    def save_params(self, step: int, params: Params, extra: dict[str, Any]) -> None:
        """Saves only parameters and extra state, and waits; raises OSError if the disk fails."""
        try:
            self.prepare()
            self.begin(step, {"params": params, "extra": extra}, scheduled=True)
            self.wait()
        except SAVE_ERRORS as error:
            if not is_disk_trouble(error):
                raise
            raise OSError(errno.EIO, reason_of(error), str(self.directory)) from error

    def abandon(self) -> None:
        """Gives up a save that has failed; later ones may succeed."""
        self.saving = None
        with contextlib.suppress(*SAVE_ERRORS):  # the same error again
            self._checkpointer.close()
        self._checkpointer = self._new_checkpointer()
        if is_first():
            self.remove_leftovers()  # half-written files take up space that may be needed

    def close(self) -> None:
        self._checkpointer.close()

    def write_scores(self, step: int, scores: Mapping[str, Any]) -> None:
        write_atomically(self._scores_file(step), json.dumps(signed(scores)) + "\n")

    def remove(self, step: int) -> None:
        """Removes a checkpoint; a process killed meanwhile leaves nothing that looks complete."""
        self._rename(step, _DELETED)

    def set_aside(self, step: int) -> Path:
        """Renames a damaged checkpoint and returns its new path."""
        return self._rename(step, _DAMAGED)

    def remove_leftovers(self) -> None:
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                if path.name.endswith(_DELETED) or _HALF_WRITTEN in path.name:
                    shutil.rmtree(path, ignore_errors=True)
            for path in self.directory.glob("*/*.tmp"):  # half-written scores
                path.unlink()

    def _rename(self, step: int, suffix: str) -> Path:
        path = self.directory / f"{step}{suffix}"
        shutil.rmtree(path, ignore_errors=True)
        (self.directory / str(step)).rename(path)
        return path

    def _new_checkpointer(self) -> ocp.AsyncCheckpointer:
        together = ocp.options.MultiprocessingOptions()
        if self._is_in_bucket:
            me = jax.process_index()
            together = ocp.options.MultiprocessingOptions(me, {me}, f"process_{me}")
        arrays = {
            name: ocp.StandardCheckpointHandler(multiprocessing_options=together) for name in ITEMS
        }
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=together),
            record=ocp.JsonCheckpointHandler(filename=_RECORD, multiprocessing_options=together),
            **arrays,
        )
        # Otherwise, if a folder cannot be made, Orbax's threads wait for it for minutes.
        options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        return ocp.AsyncCheckpointer(
            handler, async_options=options, multiprocessing_options=together
        )

    # --- Listing ---

    def has(self, step: int) -> bool:
        """True if this step has a complete checkpoint that can be reached."""
        try:
            return (self.directory / str(step)).is_dir()
        except OSError:  # a file system that went away
            return False

    def record(self, step: int) -> dict[str, Any] | None:
        """The notes saved beside the arrays; None if they are damaged."""
        directory = self.directory / str(step)
        record = read_signed(directory / "record" / _RECORD, directory, _Record)
        return record if record and record["step"] == step else None

    def scores(self, step: int) -> dict[str, Any] | None:
        """The validation scores; None if there are none. Raises Damaged."""
        path, kind = self._scores_file(step), dict[str, Number | _Patience | None]
        scores = read_signed(path, path.parent, kind)
        of_dicts = [name for name, x in (scores or {}).items() if isinstance(x, dict)]
        is_odd = scores is not None and of_dicts != ["patience"] * ("patience" in scores)
        if is_odd or (scores is None and self.has_scores(step)):
            raise Damaged(f"{path} is damaged")
        return scores

    def has_scores(self, step: int) -> bool:
        return os.path.lexists(self._scores_file(step))

    def _scores_file(self, step: int) -> Path:
        return self.directory / str(step) / _SCORES

    # --- Restoring ---

    def restore(self, step: int, likes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Items and record of a checkpoint; items are laid out as `likes`.

        Raises Damaged in all processes or in none. Raises UserError if the checkpoint cannot be
        read or its arrays are not those of `likes`.
        """
        directory = self.directory / str(step)

        def unreadable(reason: str) -> UserError:
            return UserError(
                f"cannot read the checkpoint {directory}: {reason}; mend that, then start again"
            )

        # 1. Read the record.
        if is_first():
            buckets.fetch_arrays(directory, likes)

        def read_record() -> dict[str, Any] | None:
            try:
                for path in directory.rglob("*"):
                    is_other = path.exists() and not (path.is_file() or path.is_dir())
                    if path.is_symlink() or is_other:  # a run may remove a file meanwhile
                        raise UserError(
                            f"{path} is a link or no file; put a copy of the file there"
                        )
                return self.record(step)
            except OSError as error:
                raise unreadable(f"{error.filename}: {error.strerror}") from error

        if (record := from_first(read_record)) is None:
            raise Damaged("its record is missing or altered")
        if not is_first():
            buckets.fetch_arrays(directory, likes)
        end = time.monotonic() + SECONDS_UNTIL_VISIBLE
        while not self.has(step) and time.monotonic() < end:
            time.sleep(0.1)
        # 2. Check that the shapes are this model's.
        for name, like in likes.items():
            saved = record["shapes"].get(name, {})
            if found := _other_shape(saved, _shapes(like)):
                raise UserError(
                    f"the checkpoint {directory} is of another model: in its {name}, {found}; use "
                    "the config and the commit that the run was started with (starts.jsonl)"
                )
        # 3. Let Orbax read the arrays.
        wanted = {name: _abstract(like) for name, like in _filled(likes).items()}
        arguments = {name: ocp.args.StandardRestore(like) for name, like in wanted.items()}
        items, reason = dict(likes), None
        try:
            found = self._checkpointer.restore(directory, args=ocp.args.Composite(**arguments))
            items |= {name: found[name] for name in wanted}
        except MemoryError:
            raise
        except Exception as error:  # Orbax raises many types for missing or mangled files
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            reason = reason_of(error)
            if re.search(_UNREADABLE_ERRORS, str(error)):
                raise unreadable(reason) from error
        # 4. Check the bits.
        if in_all(reason is None):
            wrong = [name for name in wanted if digest(items[name]) != record["digests"].get(name)]
            if in_all(not wrong):
                return items, record
            reason = f"its {' and '.join(wrong)} are not what was saved"
        raise Damaged(reason or "another process cannot read it")


def steps_in(directory: Path) -> list[int]:
    """The steps that have a complete checkpoint in a folder, in ascending order."""
    try:
        return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())
    except MISSING:
        return []


def is_disk_trouble(error: BaseException) -> bool:
    """True if a save failed because of the disk, not because of a bug of ours."""
    return isinstance(error, OSError) or re.search(_DISK_ERRORS, str(error)) is not None


def reason_of(error: BaseException) -> str:
    """Shortens an Orbax error, which may have fifty lines, to one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if match := re.search(_DISK_ERRORS, text):
        return match[0]
    return text if len(text) <= 200 else f"{text[:200]}..."


def _shapes(tree: Any) -> dict[str, str]:
    """Type and shape of each array, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _other_shape(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first array whose type or shape differs, in words."""
    for name in dict.fromkeys([*wanted, *saved]):
        if name not in saved:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is there, which this model does not have"
        if saved[name] != wanted[name]:
            return f"{name} is {saved[name]}, and this model's is {wanted[name]}"
    return None


def _filled(items: Mapping[str, Any]) -> dict[str, Any]:
    """The items that have arrays; Orbax refuses empty ones."""
    return {name: item for name, item in items.items() if jax.tree.leaves(item)}


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _gathered(tree: Any) -> Any:
    """The whole arrays, on the host; for process 0, but all have to take part."""

    def whole(x: jax.Array) -> np.ndarray | None:
        if not x.is_fully_replicated:
            x = multihost_utils.process_allgather(x, tiled=True)
            return x if is_first() else None  # one array at a time is in the others' memory
        return np.asarray(x.addressable_data(0)) if is_first() else None

    return jax.tree.map(whole, tree)
