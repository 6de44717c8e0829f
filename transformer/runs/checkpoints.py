"""The checkpoints of a run: pruning, the choice of the best, averaging (Section 6.1)."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from transformer.models.functional import Params
from transformer.runs.checkpoint_store import (
    CHECKPOINTS,
    ITEMS,
    SAVE_ERRORS,
    Damaged,
    Store,
    is_disk_trouble,
    reason_of,
    steps_in,
)
from transformer.system import buckets
from transformer.system.distributed import from_first, is_first
from transformer.system.errors import UserError
from transformer.training.step import TrainState

# Consecutive failed saves that are allowed for a reason other than the disk.
FAILURES_ALLOWED = 3


class Restored(NamedTuple):
    state: TrainState
    notes: dict[str, Any]  # as given to `save`
    scores: dict[str, Any] | None  # as given to `record_scores`


class Checkpoints(Store):
    """WORKDIR/checkpoints/<step>/: the last few, and the best by one metric.

    Scheduled checkpoints are kept and averaged. An unscheduled one, saved when a run is stopped in
    between, lasts only until the next. Saving runs in the background; `close` waits for it.
    direction: the better direction of `best_metric`.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        keep_last: int,
        best_metric: str,
        direction: Literal["lower", "higher"],
        read_only: bool = False,
    ):
        """`read_only` changes nothing that a training run in the same folder may be writing."""
        super().__init__(workdir.absolute() / CHECKPOINTS)
        self._keep_last = keep_last
        self._best_metric, self._direction = best_metric, direction
        self._read_only = read_only
        self._is_scheduled = False  # whether the current save was due
        self._has_saved = False  # a scheduled checkpoint: from then on there must always be one
        self._damaged_scores: set[int] = set()  # steps
        self._failures = 0  # consecutive failed saves for a reason other than the disk
        if not read_only:
            self.prepare()

    # --- Saving ---

    def save(self, state: TrainState, notes: Mapping[str, Any], *, scheduled: bool) -> None:
        """Begins to save the state, with notes for `restore_newest`.

        A disk failure, now or in the background, is reported and changes nothing else: the existing
        checkpoints stay, and the next save tries again.
        """
        step = int(state.step)
        self.wait()
        if from_first(lambda: self.has(step)):
            return  # the run was just restored from it
        self._is_scheduled = scheduled
        try:
            self.begin(step, _items(state), scheduled=scheduled, notes=dict(notes))
        except SAVE_ERRORS as error:
            self._give_up(error)

    def wait(self) -> None:
        """Returns when the current save is on the disk or has failed."""
        if self.saving is None:
            return
        try:
            super().wait()
        except SAVE_ERRORS as error:
            self._give_up(error)
        else:
            self._failures = 0
            self._has_saved |= self._is_scheduled
            self._prune()
            if is_first():
                buckets.push_soon()

    def record_scores(self, step: int, scores: Mapping[str, Any]) -> None:
        """Keeps the validation scores of a checkpoint beside it."""
        self.wait()
        if not is_first() or not self.has(step):
            return
        try:
            self.write_scores(step, scores)
            self._damaged_scores.discard(step)
        except UserError as error:
            logging.warning("%s; after a restart, step %d is evaluated again", error, step)
        self._prune()
        buckets.push_soon()

    def remove_unscheduled(self) -> None:
        """Removes checkpoints saved between scheduled ones."""
        self.wait()
        if is_first():
            with contextlib.suppress(OSError):  # never averaged; the next save removes them
                for step in set(self.steps()) - set(self.scheduled_steps()):
                    if self.record(step) is not None:
                        self.remove(step)
            self.remove_leftovers()

    def close(self) -> None:
        self.wait()
        super().close()
        if is_first() and not self._read_only:
            buckets.is_pushed()

    def _give_up(self, error: BaseException) -> None:
        step, reason = self.saving, reason_of(error)
        self.abandon()
        if not is_disk_trouble(error):
            self._failures += 1
            if self._failures == FAILURES_ALLOWED:
                raise error
        logging.warning(
            "the checkpoint of step %d could not be saved in %s (%s); training goes on, the "
            "checkpoints there are stay, and the next save tries again",
            step,
            self.directory,
            reason,
        )

    def _prune(self) -> None:
        """Deletes checkpoints that are no longer needed, now that a newer one is complete."""
        if not is_first() or self._read_only:
            return
        with contextlib.suppress(OSError, UserError):  # try again later
            steps = self.steps()
            keep = {*steps[-1:], *self.scheduled_steps()[-self._keep_last :]}
            if (best := self._best_step()) is not None:
                keep.add(best)
            keep.update(self._damaged_scores)  # any of these may be the best
            for step in steps:
                if step not in keep and self.record(step) is not None:
                    self.remove(step)
        self.remove_leftovers()

    # --- Listing ---

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, in ascending order."""
        return steps_in(self.directory)

    def scheduled_steps(self) -> list[int]:
        """The scheduled steps among `steps`, in ascending order.

        An unscheduled one becomes scheduled when a later start of the run ends there and scores it.
        """
        records = ((step, self.record(step)) for step in self.steps())
        return [
            step
            for step, record in records
            if record and (record["scheduled"] or self.has_scores(step))
        ]

    def best_step(self) -> int:
        """The step of the checkpoint with the best validation score."""
        try:
            scores = {step: self.scores(step) for step in self.scheduled_steps()}
        except Damaged as error:
            raise UserError(
                f"{error}, and the best checkpoint cannot be told; restore that file, or use "
                "--checkpoint=last"
            ) from error
        step = self._best_step()
        if missing := [s for s in list(scores)[:-1] if scores[s] is None]:
            logging.warning(
                "%s has no validation scores of step(s) %s; the best of the others is used",
                self.directory,
                ", ".join(map(str, missing)),
            )
        if step is None:
            raise UserError(
                f"no checkpoint in {self.directory} has a validation {self._best_metric}; "
                "use --checkpoint=last"
            )
        return step

    def patience(self, step: int) -> int:
        """Measurements without improvement at this step, as training counts them."""
        scores = self._scores(step)
        return scores["patience"]["without_better"] if scores and "patience" in scores else 0

    def _best_step(self) -> int | None:
        sign = -1 if self._direction == "lower" else 1
        found = {}
        for step in self.steps():
            value = (self._scores(step) or {}).get(self._best_metric)
            if value is not None and value == value:
                found[step] = sign * value, step
        return max(found, key=found.__getitem__) if found else None

    def _scores(self, step: int) -> dict[str, Any] | None:
        """The scores given to `record_scores`; None, with a warning, if they are damaged."""
        try:
            return self.scores(step)
        except Damaged as error:
            if step not in self._damaged_scores:
                logging.warning("%s", error)
                self._damaged_scores.add(step)
            return None

    # --- Restoring ---

    def restore_newest(self, like: TrainState, *, scheduled_only: bool = False) -> Restored | None:
        """The newest state, laid out as the arrays or shapes of `like`; None if there is none.

        A damaged checkpoint is reported and renamed, and the one before it is used. Process 0
        decides which checkpoints exist and which are damaged, since a network file system may still
        show older files to the others. Raises UserError if all checkpoints are damaged, if one is
        of another model, and if earlier ones have disappeared.
        """
        self.wait()
        if is_first():
            buckets.is_pushed()  # from where the others read it
        damaged = {}
        for step in reversed(from_first(self.scheduled_steps if scheduled_only else self.steps)):
            try:
                items, record = self.restore(step, _items(like))
                if "notes" not in record:
                    raise Damaged("its record has no notes for training")
            except Damaged as error:
                damaged[step] = error
                continue
            for other, reason in damaged.items():
                if is_first():
                    logging.warning(
                        "the checkpoint of step %d is damaged (%s); going on from that of step "
                        "%d (kept as %s)",
                        other, reason, step, self.set_aside(other),
                    )  # fmt: skip
            step_array = jax.make_array_from_callback(
                (), like.step.sharding, lambda _, step=step: np.int32(step)
            )
            self._has_saved |= record["scheduled"]
            self._prune()
            scores = from_first(lambda step=step: self._scores(step))
            return Restored(TrainState(step_array, **items), record["notes"], scores)
        if damaged:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in damaged.items())
            raise UserError(
                f"no checkpoint in {self.directory} can be used ({reasons}); put back a copy of "
                "one, or start again in another --workdir"
            )
        if self._has_saved:
            raise UserError(
                f"the checkpoints in {self.directory} are gone; bring them back, then start again"
            )
        return None

    def average_params(
        self, steps: Sequence[int], params: Params, extra: dict[str, Any], item: str = "params"
    ) -> tuple[Params, dict[str, Any]]:
        """The mean of the parameters of some checkpoints, and the extra state of the last.

        item: "ema" for the moving averages instead of the parameters.
        Both are laid out as `params` and `extra`. Raises UserError if a checkpoint cannot be used.
        """
        total, likes = None, {item: params, "extra": extra}
        for step in steps:
            try:
                items, _ = self.restore(step, likes)
            except Damaged as error:
                raise UserError(
                    f"the checkpoint {self.directory / str(step)} is damaged ({error}); put back "
                    "a copy of it, or choose another with --checkpoint"
                ) from error
            new = items[item]
            total = new if total is None else jax.tree.map(jnp.add, total, new)
        return jax.tree.map(lambda x: x / len(steps), total), items["extra"]


def _items(state: TrainState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in ITEMS}


def saved_steps(workdir: Path) -> list[int]:
    """The steps of a work directory that have a complete checkpoint, in ascending order."""
    return steps_in(workdir / CHECKPOINTS)
