"""Detection, rollback and report of losses that diverge, and of networks that are stuck."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from transformer.models.functional import Params
from transformer.system.files import write_atomically
from transformer.system.sharding import replicated
from transformer.training.step import StepMetrics, TrainingConfig

_AVERAGED = 20  # the running average of the loss looks back about this many updates


@dataclasses.dataclass
class BadUpdate:
    """A failed update.

    Its loss or gradient was not finite, its loss was far too high, or a part of the model got no
    gradient.
    """

    step: int  # updates before it
    batch: int
    loss: float  # nats per token
    grad_norm: float
    skipped: bool
    stuck: bool = False

    def __str__(self) -> str:
        what = "far above the average"
        if self.skipped:
            what = "skipped"
        elif self.stuck:
            what = "a network gets no gradient, so it has stopped learning for good"
        return (
            f"update {self.step + 1} on batch {self.batch}: loss {self.loss:.4g}, norm of the "
            f"gradient {self.grad_norm:.4g}: {what}"
        )


class Monitor:
    """Watches the loss, update by update; its notes go into checkpoints.

    After a rollback, update k takes batch k + `offset`, which skips the batches up to the last bad
    one.
    """

    def __init__(self, config: TrainingConfig, notes: dict[str, Any] | None = None):
        """notes: the result of an earlier Monitor's `notes`; None for a new run."""
        new = {"watched": None, "skipped": 0, "offset": 0, "rollbacks": 0}
        notes = notes or new
        self.config = config
        # Of the watched loss per token; older checkpoints lack it, or have another average.
        self.average: float | None = notes.get("watched")
        self.skipped: int = notes["skipped"]  # updates, so far
        self.offset: int = notes["offset"]  # batches
        self.rollbacks: int = notes["rollbacks"]  # since the last checkpoint
        self.bad: list[BadUpdate] = []  # in a row, up to the newest update

    def notes(self) -> dict[str, Any]:
        """The state that a checkpoint must hold."""
        return {
            "watched": self.average,
            "skipped": self.skipped,
            "offset": self.offset,
            "rollbacks": self.rollbacks,
        }

    def add(self, step: int, metrics: StepMetrics) -> BadUpdate | None:
        """Checks the update that followed `step` others; returns it if it was bad."""
        skipped, stuck = bool(metrics.skipped), bool(metrics.stuck)
        loss = float(metrics.watched) / max(int(metrics.tokens), 1)
        self.skipped += skipped
        rise = self.config.max_loss_rise
        is_high = rise > 0 and self.average is not None and loss > self.average + rise
        if skipped or is_high or stuck:
            norm = float(metrics.grad_norm)
            bad = BadUpdate(step, step + self.offset, loss, norm, skipped, stuck)
            self.bad.append(bad)
            return bad
        self.bad = []
        self.average = (
            loss if self.average is None else self.average + (loss - self.average) / _AVERAGED
        )
        return None

    @property
    def has_diverged(self) -> bool:
        return len(self.bad) >= self.config.rollback_after

    @property
    def has_given_up(self) -> bool:
        """True if the run has diverged again after the last rollback that it may make."""
        return self.has_diverged and self.rollbacks >= self.config.max_rollbacks

    def pass_over(self, diverged: "Monitor", step: int) -> None:
        """Makes the batch after the last bad one the next, after a rollback to `step`."""
        self.offset = diverged.bad[-1].batch + 1 - step
        self.rollbacks = diverged.rollbacks + 1


def write_report(
    path: Path,
    monitor: Monitor,
    examples: Sequence[list[dict[str, Any]]],
    norms: dict[str, float],
) -> None:
    """Writes a JSON report of the bad updates: steps, batches, examples, norms by layer.

    examples: the examples in the batch of each bad update, as the task shows them.
    """
    report = {
        "running_average_of_loss": monitor.average,
        "updates": [
            {**_json(dataclasses.asdict(bad)), "examples": shown}
            for bad, shown in zip(monitor.bad, examples, strict=True)
        ],
        "norms_by_layer": _json(norms),
    }
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def norms_by_layer(params: Params) -> dict[str, float]:
    """The norm of each layer's parameters, such as of encoder_layers/0 or target_embedding.

    A layer's name ends with its number; without a number, before the name of the parameter.
    """

    def squares(params: Params) -> dict[str, jax.Array]:
        sums: dict[str, jax.Array] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            names = [str(key.key) for key in path]
            ends = [i for i, name in enumerate(names, start=1) if name.isdecimal()]
            layer = "/".join(names[: ends[0]] if ends else names[:-1] or names)
            sums[layer] = sums.get(layer, 0.0) + (leaf.astype("float32") ** 2).sum()
        return sums

    mesh = jax.tree.leaves(params)[0].sharding.mesh
    found = jax.device_get(jax.jit(squares, out_shardings=replicated(mesh))(params))
    return {layer: math.sqrt(square) for layer, square in found.items()}


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """The values, with words for numbers that JSON cannot express."""
    return {name: x if math.isfinite(x) else str(x) for name, x in values.items()}
