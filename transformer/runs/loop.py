"""The loop of a run: updates, validation, checkpoints, and recovery from a bad loss."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from transformer.runs.checkpoints import Checkpoints
from transformer.runs.log import RunLog, Window
from transformer.runs.state import RunState
from transformer.runs.updates import Updates
from transformer.system import distributed
from transformer.system.compilation import Compilations
from transformer.system.errors import UserError
from transformer.system.preemption import Stopped, StopRequest
from transformer.tasks.task import Metric, TrainingTask
from transformer.training.divergence import write_report
from transformer.training.step import TrainingConfig

TRIES_AT_THE_END, SECONDS_BETWEEN_TRIES = 60, 10.0  # to save the last checkpoint


class Loop:
    """Takes a run from where it stands to its end.

    restore: returns the run's state at its newest scheduled checkpoint, or at its beginning.
    """

    def __init__(
        self,
        config: TrainingConfig,
        task: TrainingTask,
        metric: Metric,
        updates: Updates,
        checkpoints: Checkpoints,
        log: RunLog,
        stop: StopRequest,
        compilations: Compilations,
        restore: Callable[[], RunState],
    ):
        self.config = config
        self.task = task
        self.metric = metric  # training.best_metric
        self.updates = updates
        self.checkpoints = checkpoints
        self.log = log
        self.stop = stop
        self.compilations = compilations
        self.restore = restore

    def run(self, at: RunState, workdir: Path) -> RunState:
        """Returns the state at the run's end; raises Stopped if it was told to stop before."""
        config = self.config
        self.updates.start(at.step, at.monitor.offset, config.steps)
        self.compilations.expect_none()
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
                at = self.roll_back(at, workdir)
                continue
            if log_now:
                self.log.updates(at.step, at.window, at.monitor)
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
            at.patience = at.patience.after(scores[self.config.best_metric], self.metric)
        record = {**scores, "patience": vars(at.patience)}
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
        notes = {"data": self.task.data_id, **at.notes(scheduled=scheduled)}
        with self.compilations.allowed():  # Orbax slices arrays that several devices hold
            self.checkpoints.save(at.train, notes, scheduled=scheduled)

    def roll_back(self, diverged: RunState, workdir: Path) -> RunState:
        """Returns to the last scheduled checkpoint, then continues after the bad batches."""
        if diverged.monitor.has_given_up:
            self.report_divergence(diverged, workdir)
        self.updates.close()
        diverged.train = None  # frees its memory, which is needed
        at = self.restore()
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

    def report_divergence(self, at: RunState, workdir: Path) -> NoReturn:
        path, bad = workdir / "divergence.json", at.monitor.bad
        with self.compilations.allowed():
            norms = self.task.norms(at.train, bad[0].batch)
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
            if distributed.from_first(lambda: self.checkpoints.has(at.step)):
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
