"""Checkpoints: saving, restoring, and averaging their parameters (Section 6.1)."""

import contextlib
import errno
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    BestN,
    LatestN,
)

from transformer.errors import UserError
from transformer.model import Params
from transformer.training import TrainState


class Restored(NamedTuple):
    state: TrainState
    notes: dict[str, Any]  # what was given to `save`


class Checkpoints:
    """WORKDIR/checkpoints/<step>/: the last few, and the best by validation BLEU or nll.

    Parameters and optimizer state are separate items, so that evaluation reads only what it
    needs. Saving goes on in the background; `close` waits for it.
    """

    def __init__(self, workdir: Path, *, keep_last: int, best_metric: str, read_only: bool = False):
        """`read_only` leaves alone what a training run in the same place may be writing."""
        self.best_metric = best_metric

        def goodness(metrics: Mapping[str, float]) -> float:
            if best_metric not in metrics:
                return -math.inf
            return metrics[best_metric] * (-1 if best_metric == "nll" else 1)

        self._goodness = goodness
        self._directory = workdir.absolute() / "checkpoints"
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                # Without best_fn, Orbax does not write metrics at all; with max_to_keep
                # beside it, it would delete the newest checkpoint for an older, better one.
                best_fn=goodness,
                read_only=read_only,
                create=not read_only,
                save_interval_steps=0 if read_only else 1,  # or Orbax warns
                preservation_policy=AnyPreservationPolicy(
                    [LatestN(keep_last), BestN(get_metric_fn=goodness, n=1)]
                ),
            ),
        )

    def save(
        self, state: TrainState, metrics: Mapping[str, float], notes: Mapping[str, Any]
    ) -> None:
        """Saves the state; `metrics` are its validation scores, named 'nll' and 'bleu'."""
        with self._no_space():
            self._manager.save(
                int(state.step),
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    opt_state=ocp.args.StandardSave(state.opt_state),
                    notes=ocp.args.JsonSave(dict(notes)),
                ),
                metrics=dict(metrics),
            )

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, in ascending order."""
        return sorted(self._manager.all_steps())

    def best_step(self) -> int:
        """The step of the checkpoint with the best validation score."""
        step = self._manager.best_step()
        if step is None or self._goodness(self._manager.metrics(step)) == -math.inf:
            raise UserError(
                f"no checkpoint in {self._directory} has a validation {self.best_metric}; "
                "use --checkpoint=last"
            )
        return step

    def restore_last(self, like: TrainState) -> Restored | None:
        """The newest state, laid out as the arrays or shapes of `like`; None if there is none."""
        step = self._manager.latest_step()
        if step is None:
            return None
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(_abstract(like.params)),
                opt_state=ocp.args.StandardRestore(_abstract(like.opt_state)),
                notes=ocp.args.JsonRestore(),
            ),
        )
        step_array = jax.device_put(jnp.asarray(step, jnp.int32), like.step.sharding)
        state = TrainState(step_array, restored["params"], restored["opt_state"])
        return Restored(state, restored["notes"])

    def restore_params(self, step: int, like: Params) -> Params:
        """The parameters of one checkpoint, laid out as `like`."""
        args = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(like)))
        return self._manager.restore(step, args=args)["params"]

    def average_params(self, steps: Sequence[int], like: Params) -> Params:
        """The mean of the parameters of several checkpoints."""
        total = self.restore_params(steps[0], like)
        for step in steps[1:]:
            total = jax.tree.map(jnp.add, total, self.restore_params(step, like))
        return jax.tree.map(lambda x: x / len(steps), total)

    def wait(self) -> None:
        """Returns when all saves are on disk."""
        with self._no_space():
            self._manager.wait_until_finished()

    def close(self) -> None:
        with self._no_space():
            self._manager.close()

    @contextlib.contextmanager
    def _no_space(self) -> Iterator[None]:
        """Makes a full disk, which Orbax reports in its own ways, a UserError."""
        try:
            yield
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) != errno.ENOSPC and "No space left" not in str(error):
                raise
            raise UserError(
                f"no space left for a checkpoint in {self._directory}; make some, then start "
                "again to go on from the last one"
            ) from error


def _abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
