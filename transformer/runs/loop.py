"""The loop of a run: updates, validation, checkpoints, and recovery from a bad loss."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from transformer.data.prefetch import prefetch
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.log import RunLog, Window
from transformer.runs.run_config import Config
from transformer.system import buckets, distributed
from transformer.system.compilation import may_compile
from transformer.system.errors import UserError
from transformer.system.preemption import Stopped, StopRequest
from transformer.system.profiling import STEP, Profile
from transformer.tasks.task import Metric, TrainingTask
from transformer.training.divergence import Monitor, norms_by_layer, write_report
from transformer.training.step import StepMetrics, TrainState

AHEAD = 2  # updates that the device may have queued while the host goes on
TRIES_AT_THE_END, SECONDS_BETWEEN_TRIES = 60, 10.0  # to save the last checkpoint


class Patience(NamedTuple):
    """The best score, the measurements made since, and reductions of the learning rate."""

    best: float | None = None
    without_better: int = 0
    reductions: int = 0

    def after(self, score: float, metric: Metric, plateau: int) -> "Patience":
        """plateau: the measurements without a better one that reduce the rate; 0: it stays."""
        if self.best is None or metric.is_better(score, self.best):
            return Patience(score, 0, self.reductions)
        since = self.without_better + 1
        is_plateau = plateau > 0 and since % plateau == 0
        return Patience(self.best, since, self.reductions + is_plateau)


@dataclasses.dataclass
class RunState:
    """The point that a run has reached: all that a checkpoint must hold.

    is_evaluated: whether the validation of this step is done, or none is due.
    """

    train: TrainState | None  # None while its memory is needed for another
    step: int
    window: Window
    monitor: Monitor
    patience: Patience
    is_evaluated: bool


class Programs(NamedTuple):
    """The programs compiled for a run before its first step."""

    begin: Callable[[], TrainState]  # the state of a new run
    like: TrainState  # shapes, types and shardings of the state
    step: jax.stages.Compiled


class Finished(NamedTuple):
    """An update whose metrics have arrived."""

    step: int  # number of updates before it
    metrics: StepMetrics
    num_tokens: int
    wait: float  # seconds it waited for its batch


class Updates:
    """Feeds batches to the compiled train step; the device never waits for the host."""

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


class Loop:
    """Takes a run from where it stands to its end."""

    def __init__(
        self,
        config: Config,
        task: TrainingTask,
        programs: Programs,
        updates: Updates,
        checkpoints: Checkpoints,
        log: RunLog,
        stop: StopRequest,
    ):
        self.config, self.metric = config.training, config.best_metric
        self.optimizer = config.optimizer
        self.task = task
        self.programs = programs
        self.updates = updates
        self.checkpoints = checkpoints
        self.log = log
        self.stop = stop

    def restore(self, *, scheduled_only: bool = False) -> RunState:
        """The run's state at its newest checkpoint; at its beginning if there is none."""
        like = self.programs.like
        found = self.checkpoints.restore_newest(like, scheduled_only=scheduled_only)
        if found is None:
            train, monitor = self.programs.begin(), Monitor(self.config)
            return RunState(train, 0, Window(), monitor, Patience(), is_evaluated=True)
        train, notes, scores = found
        if notes["data"] != self.task.data_id:
            raise UserError(
                f"the training or validation data, or the order of the batches, is not what "
                f"{self.log.workdir} was begun with; put the data back, use the versions of NumPy "
                "and of this project that starts.jsonl names, or start again in another --workdir"
            )
        at = RunState(
            train,
            int(train.step),
            Window.restored(notes["window"]),
            Monitor(self.config, notes["monitor"]),
            Patience(**(scores or notes)["patience"]),
            is_evaluated=scores is not None,
        )
        self.scale_rate(at)
        return at

    def run(self, at: RunState) -> RunState:
        """Returns the state at the run's end; raises Stopped if it was told to stop before."""
        config = self.config
        self.updates.start(at.step, at.monitor.offset, config.steps)
        last_scores: dict = {}
        while True:
            # 1. Validate a checkpoint, which is saved meanwhile.
            if self.is_due(at.step) and not at.is_evaluated:
                last_scores = self.validate(at)
            if at.step >= config.steps or self.is_out_of_patience(at):
                break

            # 2. Update.
            at.train = self.updates.run(at.train, at.step)
            at.step, at.is_evaluated = at.step + 1, False

            # 3. Log metrics of updates, a little late, so that the device never waits for the host.
            stop_now, is_due = self.stop.seen(), self.is_due(at.step)
            log_now = at.step % config.log_every == 0 or is_due
            self.take_metrics(at, wait_for_all=log_now or stop_now)
            if at.monitor.has_diverged:
                at = self.roll_back(at)
                continue
            if log_now:
                self.log.updates(at.step, at.window, at.monitor, self.rate_scale(at))
                at.window = Window()

            # 4. Save a checkpoint.
            if is_due or stop_now:
                self.save(at, scheduled=is_due)
            if stop_now:
                self.checkpoints.wait()
                self.log.print(f"stopped after step {at.step}")
                raise Stopped(together=True)
        self.make_sure_of_the_last_checkpoint(at, last_scores)
        return at

    def is_due(self, step: int) -> bool:
        """True if a checkpoint is scheduled at this step."""
        config = self.config
        return step > 0 and (step == config.steps or step % config.checkpoint_every == 0)

    def is_out_of_patience(self, at: RunState) -> bool:
        return 0 < self.config.patience <= at.patience.without_better

    def rate_scale(self, at: RunState) -> float:
        return self.optimizer.plateau_factor**at.patience.reductions

    def scale_rate(self, at: RunState) -> None:
        """Gives the optimizer the scale that the measurements so far lead to."""
        if self.optimizer.plateau_patience:
            scale, old = np.float32(self.rate_scale(at)), at.train.opt_state.scale
            new = jax.make_array_from_callback((), old.sharding, lambda _: scale)
            at.train = at.train._replace(opt_state=at.train.opt_state._replace(scale=new))

    def take_metrics(self, at: RunState, *, wait_for_all: bool) -> None:
        for update in self.updates.finished(wait_for_all=wait_for_all):
            at.window.add(update.metrics, update.num_tokens, update.wait)
            if bad := at.monitor.add(update.step, update.metrics):
                self.log.print(f"warning: {bad} ({len(at.monitor.bad)} in a row)")
            if at.monitor.has_diverged:
                return

    def validate(self, at: RunState) -> dict:
        """Measures and logs; returns the scores to record with the checkpoint."""

        def stop_here(*_) -> None:
            if self.stop.seen():
                self.log.print(f"stopped in the validation of step {at.step}")
                raise Stopped(together=True)

        every = self.config.full_validation_every
        full = every > 0 and (at.step % every == 0 or at.step == self.config.steps)
        scores, examples = self.task.validate(at.train, full, stop_here)
        self.log.validation(at.step, scores, examples)
        if self.config.best_metric in scores:
            before, plateau = at.patience.reductions, self.optimizer.plateau_patience
            score = scores[self.config.best_metric]
            at.patience = at.patience.after(score, self.metric, plateau)
            if at.patience.reductions > before:
                self.scale_rate(at)
                self.log.print(
                    f"step {at.step}: no better {self.config.best_metric} in {plateau} "
                    f"measurements; the learning rate falls to {self.rate_scale(at):.3g} of its "
                    "schedule"
                )
        record = {**scores, "patience": at.patience._asdict()}
        self.checkpoints.record_scores(at.step, record)
        if distributed.from_first(lambda: self.checkpoints.has(at.step)):
            at.monitor.rollbacks = 0
        at.is_evaluated = True
        at.window = Window()  # its clock starts now
        return record

    def save(self, at: RunState, *, scheduled: bool) -> None:
        """Begins to save; while the loss is bad, only the very last checkpoint is saved."""
        if at.monitor.bad and at.step < self.config.steps:
            self.log.print(f"warning: nothing is saved at step {at.step}: the loss is bad")
            at.is_evaluated = True  # there is no checkpoint to evaluate
            return
        monitor = at.monitor.notes()
        if scheduled:  # a restored run has a new checkpoint
            monitor["rollbacks"] = 0
        notes = {
            "data": self.task.data_id,
            "window": dataclasses.asdict(at.window),
            "monitor": monitor,
        }
        notes["patience"] = at.patience._asdict()
        with may_compile():  # Orbax slices arrays that several devices hold
            self.checkpoints.save(at.train, notes, scheduled=scheduled)

    def roll_back(self, diverged: RunState) -> RunState:
        """Returns to the last scheduled checkpoint, then continues after the bad batches."""
        if diverged.monitor.has_given_up:
            self.report_divergence(diverged)
        self.updates.close()
        diverged.train = None  # frees its memory, which is needed
        at = self.restore(scheduled_only=True)
        self.checkpoints.remove_unscheduled()
        at.monitor.pass_over(diverged.monitor, at.step)
        self.log.rewind(at.step, evaluated=at.is_evaluated)
        self.updates.start(at.step, at.monitor.offset, self.config.steps)
        self.log.print(
            f"warning: the loss is bad; from step {diverged.step} back to step {at.step}, and on "
            f"with batch {at.step + at.monitor.offset} "
            f"(rollback {at.monitor.rollbacks} of {self.config.max_rollbacks})"
        )
        return at

    def report_divergence(self, at: RunState) -> NoReturn:
        path, bad = self.log.workdir / "divergence.json", at.monitor.bad
        with may_compile():
            norms = norms_by_layer(at.train.params)
        if distributed.is_first():
            examples = [self.task.examples(update.batch) for update in bad]
            write_report(path, at.monitor, examples, norms)
        raise UserError(
            f"the loss is bad again after {at.monitor.rollbacks} rollbacks ({bad[-1]}; its "
            f"running average is {at.monitor.average}); {path} has the batches, their examples and "
            "norms by layer; start again in another --workdir with a lower "
            "optimizer.peak_learning_rate, a longer optimizer.warmup_steps, or "
            "optimizer.max_grad_norm"
        )

    def make_sure_of_the_last_checkpoint(self, at: RunState, scores: dict) -> None:
        """Waits for the last checkpoint; retries for some minutes if it cannot be saved.

        scores: the result of `validate` for it.
        """
        for _ in range(TRIES_AT_THE_END):
            self.checkpoints.wait()
            if distributed.from_first(
                lambda: self.checkpoints.has(at.step) and buckets.is_pushed()
            ):
                return
            self.log.print(f"warning: trying again in {SECONDS_BETWEEN_TRIES:.0f} s")
            time.sleep(SECONDS_BETWEEN_TRIES)
            if self.stop.seen():
                raise Stopped(together=True)
            self.save(at, scheduled=True)
            self.checkpoints.record_scores(at.step, scores)
        raise UserError(
            f"the last checkpoint, of step {at.step}, cannot be saved in "
            f"{self.checkpoints.directory}; make room there, then start again to go on from the "
            "one before it"
        )
