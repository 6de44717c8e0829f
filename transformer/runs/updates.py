"""Updates, one after the other; the device never waits for the host."""

import collections
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from transformer.data.prefetch import prefetch
from transformer.system.profiling import STEP, Profile
from transformer.tasks.task import TrainingTask
from transformer.training.step import StepMetrics, TrainState

AHEAD = 2  # updates that the device may have queued while the host goes on


class Finished(NamedTuple):
    """An update whose metrics have arrived."""

    step: int  # number of updates before it
    metrics: StepMetrics
    num_tokens: int
    wait: float  # seconds it waited for its batch


class Updates:
    """Feeds batches to the compiled train step; metrics come a little later."""

    def __init__(self, task: TrainingTask, program: jax.stages.Compiled, profile: Profile):
        self._task, self._program, self._profile = task, program, profile
        self._batches: Iterator[tuple[Any, int]] | None = None
        self._pending: collections.deque[Finished] = collections.deque()

    def start(self, step: int, offset: int, end: int) -> None:
        """Begins to load the batches of the updates from `step` to `end`.

        offset: the number of a batch minus that of its update.
        """
        self.close()
        self._batches = prefetch(self._task.batch, range(step + offset, end + offset))
        self._pending.clear()

    def run(self, state: TrainState, step: int) -> TrainState:
        """Starts one update, number `step` from 0; its result may still be in progress."""
        self._profile.before(step, state)
        start = time.monotonic()
        batch, num_tokens = next(self._batches)
        wait = time.monotonic() - start
        with jax.profiler.StepTraceAnnotation(STEP, step_num=step):
            state, metrics = self._program(state, batch)
        self._pending.append(Finished(step, metrics, num_tokens, wait))
        self._profile.after(step + 1, state)
        return state

    def finished(self, *, wait_for_all: bool) -> Iterator[Finished]:
        """The updates whose metrics have come: all, or all but the newest AHEAD."""
        keep = 0 if wait_for_all else AHEAD
        while len(self._pending) > keep:
            update = self._pending.popleft()
            yield update._replace(metrics=jax.device_get(update.metrics))

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
