"""The state of a run: all that a checkpoint must hold."""

import dataclasses
from typing import Any

from transformer.runs.log import Window
from transformer.tasks.task import Metric
from transformer.training.divergence import Monitor
from transformer.training.step import TrainingConfig, TrainState


@dataclasses.dataclass
class Patience:
    """The state of early stopping: the best score, and the measurements made since."""

    best: float | None = None
    without_better: int = 0

    def after(self, score: float, metric: Metric) -> "Patience":
        if self.best is None or metric.is_better(score, self.best):
            return Patience(score, 0)
        return Patience(self.best, self.without_better + 1)


@dataclasses.dataclass
class RunState:
    """The point that a run has reached.

    is_evaluated: whether the validation of this step is done, or none is due.
    """

    train: TrainState | None  # None while its memory is needed for another
    step: int
    window: Window
    monitor: Monitor
    patience: Patience
    is_evaluated: bool

    @classmethod
    def new(cls, train: TrainState, config: TrainingConfig) -> "RunState":
        return cls(train, 0, Window(), Monitor(config), Patience(), is_evaluated=True)

    @classmethod
    def restored(
        cls,
        train: TrainState,
        notes: dict[str, Any],
        scores: dict[str, Any] | None,
        config: TrainingConfig,
    ) -> "RunState":
        """notes: the result of `notes`; scores: recorded after the checkpoint's validation."""
        return cls(
            train,
            int(train.step),
            Window(notes["window"]),
            Monitor(config, notes["monitor"]),
            Patience(**(scores or notes)["patience"]),
            is_evaluated=scores is not None,
        )

    def notes(self, *, scheduled: bool) -> dict[str, Any]:
        """The part of a checkpoint beside the arrays."""
        monitor = self.monitor.notes()
        if scheduled:  # a restored run has a new checkpoint
            monitor["rollbacks"] = 0
        return {
            "window": self.window.notes(),
            "monitor": monitor,
            "patience": dataclasses.asdict(self.patience),
        }
