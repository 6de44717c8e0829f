"""Checkpoints: saving, restoring, and averaging their parameters (Section 6.1)."""

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from transformer.models.functional import Params
from transformer.runs.integrity import difference, digest, read_signed, signed, write_inventory
from transformer.system.distributed import from_first, in_all, is_first
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.training.step import TrainState

# What a full or failing disk raises, in Orbax's main thread and in its others.
DISK_TROUBLE = (OSError, ValueError, jax.errors.JaxRuntimeError)
SECONDS_UNTIL_VISIBLE = 60.0  # of a directory, to all hosts of a network file system
_HALF_WRITTEN, _DELETED, _DAMAGED = ".orbax-checkpoint-tmp", ".deleted", ".damaged"


class Restored(NamedTuple):
    state: TrainState
    notes: dict[str, Any]  # what was given to `save`
    scores: dict[str, Any] | None  # what was given to `record_scores`


class Damaged(Exception):
    """A checkpoint is not what was saved; the message says in what way."""


class Checkpoints:
    """WORKDIR/checkpoints/<step>/: the last few, and the best by validation BLEU or nll.

    A checkpoint has its name when it is complete, and carries digests of what is in it, so
    that damage is noticed. Parameters and optimizer state are separate items: evaluation
    reads only what it needs. Saving goes on in the background; `close` waits for it.
    Scheduled checkpoints are the ones to keep and to average; the others, saved when a run
    was stopped in between, only last until the next.
    """

    def __init__(self, workdir: Path, *, keep_last: int, best_metric: str, read_only: bool = False):
        """`read_only` leaves alone what a training run in the same place may be writing."""
        self.best_metric = best_metric
        self._keep_last = keep_last
        self._directory = workdir.absolute() / "checkpoints"
        self._read_only = read_only
        self._saving: int | None = None  # the step that is being saved
        self._is_scheduled = False  # whether that was due
        self._has_saved = False  # a scheduled checkpoint: there must always be one from then on
        self._checkpointer = self._new_checkpointer()
        if not read_only and is_first():
            self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()

    # --- Saving ---

    def save(self, state: TrainState, notes: Mapping[str, Any], *, scheduled: bool) -> None:
        """Begins to save the state, with notes for whoever restores it.

        When it fails, now or in the background, that is reported and nothing else changes:
        the checkpoints there are stay, and the next save tries anew.
        """
        step = int(state.step)
        self.wait()
        if from_first(lambda: self.has(step)):
            return  # the one that the run was just restored from
        items = {"params": state.params, "opt_state": state.opt_state}
        arguments = _arguments(step, items, scheduled=scheduled, notes=dict(notes))
        self._saving, self._is_scheduled = step, scheduled
        try:
            self._checkpointer.save(self._directory / str(step), args=arguments)
        except DISK_TROUBLE as error:
            self._give_up(error)

    def save_params(self, step: int, params: Params) -> None:
        """Saves parameters alone; raises one of DISK_TROUBLE if it cannot."""
        arguments = _arguments(step, {"params": params}, scheduled=True)
        self._saving = step
        try:
            self._checkpointer.save(self._directory / str(step), args=arguments)
            self._checkpointer.wait_until_finished()
        finally:
            self._saving = None

    def wait(self) -> None:
        """Returns when what was being saved is on the disk, or has failed."""
        if self._saving is None:
            return
        try:
            self._checkpointer.wait_until_finished()
        except DISK_TROUBLE as error:
            self._give_up(error)
        else:
            self._saving = None
            self._has_saved |= self._is_scheduled
            self._prune()

    def record_scores(self, step: int, scores: Mapping[str, Any]) -> None:
        """Keeps the validation scores, named 'nll' and 'bleu', of a checkpoint beside it."""
        self.wait()
        if not is_first() or not self.has(step):
            return
        try:
            write_atomically(self._scores_file(step), json.dumps(signed(scores)) + "\n")
        except UserError as error:
            logging.warning("%s; after a restart, step %d is evaluated again", error, step)
        self._prune()

    def remove_unscheduled(self) -> None:
        """Removes what was saved between scheduled checkpoints."""
        self.wait()
        if is_first():
            with contextlib.suppress(OSError):  # they are never averaged, and go with the next
                for step in set(self.steps()) - set(self.scheduled_steps()):
                    if self._record(step) is not None:
                        self._rename(step, _DELETED)
            self._remove_leftovers()

    def close(self) -> None:
        self.wait()
        self._checkpointer.close()

    def _new_checkpointer(self) -> ocp.AsyncCheckpointer:
        handler = ocp.CompositeCheckpointHandler(
            params=ocp.StandardCheckpointHandler(),
            opt_state=ocp.StandardCheckpointHandler(),
            record=ocp.JsonCheckpointHandler(filename=_RECORD),
        )
        options = ocp.options.AsyncOptions(
            post_finalization_callback=self._write_inventory,
            # Otherwise, where a folder cannot be made, Orbax's threads wait minutes for it.
            create_directories_asynchronously=False,
        )
        return ocp.AsyncCheckpointer(handler, async_options=options)

    def _give_up(self, error: BaseException) -> None:
        logging.warning(
            "the checkpoint of step %d could not be saved in %s (%s); training goes on, the "
            "checkpoints there are stay, and the next save tries again",
            self._saving,
            self._directory,
            reason_of(error),
        )
        self._saving = None
        with contextlib.suppress(*DISK_TROUBLE):  # the same trouble again
            self._checkpointer.close()
        self._checkpointer = self._new_checkpointer()
        if is_first():
            self._remove_leftovers()  # what is half-written takes space that may be missing

    def _write_inventory(self) -> None:
        """Notes what files there are, so that each that is altered or lost is noticed.

        Called in the background, in process 0, when all is written but has no name yet.
        """
        (directory,) = self._directory.glob(f"{self._saving}{_HALF_WRITTEN}*")
        write_inventory(directory, later=("_CHECKPOINT_METADATA",))  # Orbax adds a time to it

    def _prune(self) -> None:
        """Deletes what need not be kept, now that a newer checkpoint is complete."""
        if not is_first() or self._read_only:
            return
        with contextlib.suppress(OSError):  # later, then
            steps = self.steps()
            keep = {*steps[-1:], *self.scheduled_steps()[-self._keep_last :]}
            if (best := self._best_step()) is not None:
                keep.add(best)
            for step in steps:
                if step not in keep and self._record(step) is not None:
                    # Not rmtree alone: killed half-way, it would leave what looks complete.
                    self._rename(step, _DELETED)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        with contextlib.suppress(OSError):
            for path in self._directory.iterdir():
                if path.name.endswith(_DELETED) or _HALF_WRITTEN in path.name:
                    shutil.rmtree(path, ignore_errors=True)
            for path in self._directory.glob("*/*.tmp"):  # of scores
                path.unlink()

    def _rename(self, step: int, suffix: str) -> Path:
        path = self._directory / f"{step}{suffix}"
        shutil.rmtree(path, ignore_errors=True)
        (self._directory / str(step)).rename(path)
        return path

    # --- What there is ---

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, in ascending order."""
        return saved_steps(self._directory.parent)

    def has(self, step: int) -> bool:
        """Whether this step has a complete checkpoint that can be reached."""
        try:
            return (self._directory / str(step)).is_dir()
        except OSError:  # a file system that went away
            return False

    def scheduled_steps(self) -> list[int]:
        """Those of them that were due, in ascending order.

        One that was not becomes so when a later start of the run ends there, and scores it.
        """
        records = ((step, self._record(step)) for step in self.steps())
        return [
            step
            for step, record in records
            if record and (record["scheduled"] or self._scores(step))
        ]

    def best_step(self) -> int:
        """The step of the checkpoint with the best validation score."""
        step = self._best_step()
        if step is None:
            raise UserError(
                f"no checkpoint in {self._directory} has a validation {self.best_metric}; "
                "use --checkpoint=last"
            )
        return step

    def patience(self, step: int) -> int:
        """How many measurements had brought nothing better at this step, as training counts."""
        return (self._scores(step) or {}).get("patience", {}).get("without_better", 0)

    def _best_step(self) -> int | None:
        sign = -1 if self.best_metric == "nll" else 1
        scores = {step: (self._scores(step) or {}).get(self.best_metric) for step in self.steps()}
        scores = {s: sign * v for s, v in scores.items() if v is not None and v == v}
        return max(scores, key=lambda step: (scores[step], step)) if scores else None

    def _scores_file(self, step: int) -> Path:
        return self._directory / str(step) / _SCORES

    def _scores(self, step: int) -> dict[str, Any] | None:
        return read_signed(self._scores_file(step))

    def _record(self, step: int) -> dict[str, Any] | None:
        """What was saved beside the arrays; None if it is not as it was saved."""
        record = read_signed(self._directory / str(step) / "record" / _RECORD)
        return record if record and record["step"] == step else None

    # --- Restoring ---

    def restore_newest(self, like: TrainState, *, scheduled_only: bool = False) -> Restored | None:
        """The newest state, laid out as the arrays or shapes of `like`; None if there is none.

        What is damaged is reported and set aside under another name, and the one before it
        is used. Process 0 says what there is and what is damaged: to another one a network
        file system may still show older files. Raises UserError if there are checkpoints and
        all of them are damaged, and if those that were there are gone.
        """
        self.wait()
        damaged = {}
        steps = from_first(self.scheduled_steps if scheduled_only else self.steps)
        for step in reversed(steps):
            try:
                items, record = self._restore(step, params=like.params, opt_state=like.opt_state)
            except Damaged as error:
                damaged[step] = error
                continue
            for other, reason in damaged.items():
                if is_first():
                    logging.warning(
                        "the checkpoint of step %d is damaged (%s); going on from that of step "
                        "%d (kept as %s)",
                        other, reason, step, self._rename(other, _DAMAGED),
                    )  # fmt: skip
            step_array = jax.make_array_from_callback(
                (), like.step.sharding, lambda _, step=step: np.int32(step)
            )
            state = TrainState(step_array, items["params"], items["opt_state"])
            self._has_saved |= record["scheduled"]
            self._prune()
            scores = from_first(lambda step=step: self._scores(step))
            return Restored(state, record["notes"], scores)
        if damaged:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self._directory} can be used ({reasons}); put back a copy of "
                "one, or start again in another --workdir"
            )
        if self._has_saved:
            raise UserError(
                f"the checkpoints in {self._directory} are gone; bring them back, then start again"
            )
        return None

    def restore_params(self, step: int, like: Params) -> Params:
        """The parameters of one checkpoint, laid out as `like`."""
        try:
            return self._restore(step, params=like)[0]["params"]
        except Damaged as error:
            raise UserError(
                f"the checkpoint {self._directory / str(step)} is damaged ({error}); put back a "
                "copy of it, or choose another with --checkpoint"
            ) from error

    def average_params(self, steps: Sequence[int], like: Params) -> Params:
        """The mean of the parameters of several checkpoints."""
        total = self.restore_params(steps[0], like)
        for step in steps[1:]:
            total = jax.tree.map(jnp.add, total, self.restore_params(step, like))
        return jax.tree.map(lambda x: x / len(steps), total)

    def _restore(self, step: int, **likes: Any) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Items and record of a checkpoint; raises Damaged, in all processes or in none."""
        directory = self._directory / str(step)

        # 1. The files.
        def record_and_reason() -> tuple[dict[str, Any] | None, str | None]:
            record, reason = self._record(step), difference(directory)
            if record is None:
                reason = reason or "its record is missing or altered"
            return record, reason

        record, reason = from_first(record_and_reason)
        if reason:
            raise Damaged(reason)
        end = time.monotonic() + SECONDS_UNTIL_VISIBLE
        while not self.has(step) and time.monotonic() < end:
            time.sleep(0.1)
        # 2. What Orbax reads.
        items = {}
        arguments = {name: ocp.args.StandardRestore(_abstract(x)) for name, x in likes.items()}
        try:
            items = self._checkpointer.restore(directory, args=ocp.args.Composite(**arguments))
        except MemoryError:
            raise
        except Exception as error:  # whatever Orbax makes of missing or mangled files
            if "RESOURCE_EXHAUSTED" in str(error):
                raise
            reason = reason_of(error)
        # 3. Its bits.
        if in_all(reason is None):
            wrong = [name for name in likes if digest(items[name]) != record["digests"][name]]
            if in_all(not wrong):
                return items, record
            reason = f"its {' and '.join(wrong)} are not what was saved"
        raise Damaged(reason or "another process cannot read it")


def saved_steps(workdir: Path) -> list[int]:
    """The steps of a work directory that have a complete checkpoint, in ascending order."""
    directory = workdir / "checkpoints"
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


_RECORD, _SCORES = "record.json", "scores.json"
_DISK_ERRORS = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO


def _arguments(step: int, items: Mapping[str, Any], **said: Any) -> ocp.args.Composite:
    """What Orbax is to save: the items, and a record of their digests and of what is said."""
    digests = {name: digest(item) for name, item in items.items()}
    record = signed({"step": step, **said, "digests": digests})
    arrays = {name: ocp.args.StandardSave(item) for name, item in items.items()}
    return ocp.args.Composite(record=ocp.args.JsonSave(record), **arrays)


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def reason_of(error: BaseException) -> str:
    """One short line of what Orbax may say in fifty."""
    text = " ".join(str(error).split()) or type(error).__name__
    if match := re.search("|".join(map(os.strerror, _DISK_ERRORS)), text):
        return match[0]
    return text if len(text) <= 200 else f"{text[:200]}..."
