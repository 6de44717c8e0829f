"""The output of a run as it goes on: metrics, totals, lines for people."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformer.runs.history import metrics_until, total
from transformer.runs.metric_writers import MetricsWriter
from transformer.runs.progress import Progress
from transformer.runs.run_config import Config, flat
from transformer.runs.tracking import WandbWriter, check_login
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically
from transformer.tasks.task import Examples
from transformer.training.divergence import Monitor
from transformer.training.step import StepMetrics

SECONDS_BETWEEN_PICTURES = 30.0


@dataclasses.dataclass
class Window:
    """Sums of the updates since the last line of the log; they go into checkpoints."""

    loss: float = 0.0
    tokens: int = 0  # the loss's, in updates that were not skipped
    grad_norm: float = 0.0
    updates: int = 0
    terms: dict[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        # For this process only, so not in checkpoints:
        self._start = time.monotonic()
        self._updates_here = self._tokens_here = 0
        self._wait = 0.0

    @classmethod
    def restored(cls, notes: Mapping[str, Any]) -> "Window":
        """notes: the fields, as in a checkpoint. Those of earlier commits had nll beside terms."""
        earlier = {"nll": notes["nll"]} if "nll" in notes else {}
        rest = {name: value for name, value in notes.items() if name not in earlier}
        return cls(**{**rest, "terms": {**notes["terms"], **earlier}})

    def add(self, metrics: StepMetrics, num_tokens: int, wait: float) -> None:
        """Adds a finished update: its number of tokens, and the seconds it waited for its batch."""
        self._updates_here += 1
        self._tokens_here += num_tokens
        self._wait += wait
        for name, value in metrics.terms.items():  # NaN in the log if all updates are skipped
            self.terms.setdefault(name, 0.0)
            self.terms[name] += 0.0 if metrics.skipped else float(value)
        if not metrics.skipped:
            self.loss += float(metrics.loss)
            self.tokens += int(metrics.tokens)
            self.grad_norm += float(metrics.grad_norm)
            self.updates += 1

    def summary(self) -> dict[str, float]:
        """The values to log; NaN if every update was skipped."""
        tokens = self.tokens or math.nan
        return {
            "train/loss": self.loss / tokens,
            **{f"train/{name}": value / tokens for name, value in self.terms.items()},
            "train/grad_norm": self.grad_norm / (self.updates or math.nan),
            "train/tokens_per_second": self._tokens_here / (time.monotonic() - self._start),
            "input/wait_ms": 1000 * self._wait / max(self._updates_here, 1),
        }


def check_can_log(workdir: Path, config: Config) -> None:
    """Raises UserError where RunLog.open would fail, before the work begins."""
    check_can_write(workdir / "metrics.jsonl")  # TensorBoard's file is in the same folder
    if config.training.wandb:
        check_login()


class RunLog:
    """Writes metrics and shows progress in process 0; does nothing in the others.

    draw: redraws the picture of the learning curves.
    schedule: the learning rate of the n-th update that was not skipped.
    mfu: the share of the devices' peak that one token a second takes; None where not known.
    """

    def __init__(
        self,
        workdir: Path,
        config: Config,
        schedule: Callable[[int], float],
        mfu: float | None,
        start_time: float,
        draw: Callable[[], None],
    ):
        self.workdir, self._config = workdir, config
        self._schedule, self._mfu = schedule, mfu
        self._draw, self._drawn_at = draw, time.monotonic()
        self._metrics: MetricsWriter | None = None
        self._wandb: WandbWriter | None = None
        self._progress: Progress | None = None
        self._tokens, self._started = 0.0, start_time

    def open(self, step: int, *, evaluated: bool) -> None:
        """Continues the log from where the run stands; removes lines of later steps."""
        if distributed.is_first():
            fields, project = flat(self._config), self._config.training.wandb
            measured = [f"eval/validation/{name}" for name in self._config.kind.metrics]
            self._metrics = MetricsWriter(
                self.workdir,
                first_step=step,
                evaluated=evaluated,
                fields=fields,
                outcomes=["train/nll", *measured],
            )
            if project:
                self._wandb = WandbWriter(project, self.workdir, fields)
            self._progress = Progress(self._config.training.steps, initial=step)
            self._tokens, seconds_before = self._last_totals(step)
            self._started -= seconds_before

    def close(self) -> None:
        for part in (self._metrics, self._progress, self._wandb):
            if part:  # `open` may have failed before it
                part.close()

    def print(self, text: str) -> None:
        """Prints a message above the progress bar."""
        if self._progress:
            self._progress.print(text)

    def updates(self, step: int, window: Window, monitor: Monitor, scale: float) -> None:
        """Logs the updates of a window that ends at `step`. scale: of the learning rate."""
        if not self._metrics:
            return
        values = window.summary()
        values["train/learning_rate"] = scale * self._schedule(step - monitor.skipped)
        self._tokens += window.tokens
        values["total/target_tokens"] = self._tokens
        values["total/seconds"] = time.monotonic() - self._started
        values["train/skipped_updates"] = monitor.skipped
        values["train/skipped_batches"] = monitor.offset
        speed = values["train/tokens_per_second"]
        if self._mfu is not None:
            values["train/mfu"] = self._mfu * speed
        self._write(step, values)
        shown = {name: values[f"train/{name}"] for name in self._config.kind.shown}
        self._progress.update(step, **shown, tokens_per_second=speed)

    def validation(self, step: int, scores: Mapping[str, float], examples: Examples) -> None:
        """Logs the metrics of a validation, and shows examples if there are any.

        Pictures go to WORKDIR/<name>/<step>.png, and to TensorBoard.
        """
        if not self._metrics:
            return
        if examples.text:
            self.print(f"step {step}, validation:\n{examples.text}")
        # Of other splits, such as a corpus's news/nll, the name says which.
        names = {name: name if "/" in name else f"validation/{name}" for name in scores}
        self._write(step, {f"eval/{names[name]}": score for name, score in scores.items()})
        for name, picture in examples.pictures.items():
            try:
                write_atomically(self.workdir / name / f"{step:08}.png", picture.png)
            except UserError as error:  # a full disk does not end the run
                self.print(f"warning: {error}")
            self._metrics.write_picture(step, name, picture)
        if time.monotonic() - self._drawn_at >= SECONDS_BETWEEN_PICTURES:
            with contextlib.suppress(OSError, UserError):  # nor is this a reason to end it
                self._draw()
            self._drawn_at = time.monotonic()
        shown = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self.print(f"step {step}: validation {shown}")

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self._metrics.write(step, values)
        if self._wandb:
            self._wandb.write(step, values)

    def rewind(self, step: int, *, evaluated: bool) -> None:
        """Goes back to `step`: see MetricsWriter.rewind."""
        if self._metrics:
            self._metrics.rewind(step, evaluated=evaluated)
            self._tokens, _ = self._last_totals(step)

    def _last_totals(self, step: int) -> tuple[float, float]:
        """Target tokens and seconds of the run so far."""
        lines = metrics_until(self.workdir, step)
        return total(lines, "target_tokens"), total(lines, "seconds")
