"""Detection, rollback and report of losses that diverge, and of networks that are stuck."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer.models.functional import FunctionalModel, Params
from transformer.system.files import write_atomically
from transformer.system.sharding import gather_fsdp, replicated
from transformer.training.step import StepMetrics, TrainingConfig, TrainState

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
    norms: dict[str, dict[str, float]],
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
        "norms_by_layer": {layer: _json(values) for layer, values in norms.items()},
    }
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def norms_by_layer(
    model: FunctionalModel,
    state: TrainState,
    batch: Any,
    loss_of: Callable[[Any, Any], jax.Array],
) -> dict[str, dict[str, float]]:
    """Norms of the parameters and of a batch's gradient, for each layer.

    loss_of: returns the loss of a bound model on the first accumulation step.
    """
    mesh = jax.tree.leaves(batch)[0].sharding.mesh

    def norms(params: Params, extra: dict, batch: Any):
        part = jax.tree.map(lambda x: x[0], batch)  # the first accumulation step

        def loss(params: Params) -> jax.Array:
            bound = model.bind(gather_fsdp(mesh, params, model.sharding), extra)
            return loss_of(bound, part)

        return _squares(params), _squares(jax.grad(loss)(params))

    norms = jax.jit(norms, out_shardings=replicated(mesh))
    params_squares, gradient_squares = jax.device_get(norms(state.params, state.extra, batch))
    return {
        layer: {
            "parameters": math.sqrt(params_squares[layer]),
            "gradient": math.sqrt(gradient_squares[layer]),
        }
        for layer in params_squares
    }


def norms_by_layer_of_loss(
    model: FunctionalModel, state: TrainState, batch: Any, label_smoothing: float
) -> dict[str, dict[str, float]]:
    """`norms_by_layer` for the model's own loss, without dropout."""
    return norms_by_layer(
        model, state, batch, lambda bound, part: bound.loss(part, None, label_smoothing).loss
    )


def _squares(tree: Params) -> dict[str, jax.Array]:
    """The summed squares of each layer, such as encoder_layers/0 or target_embedding.

    A layer's name ends with its number; without a number, before the name of the parameter.
    """
    sums: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        names = [str(key.key) for key in path]
        ends = [i for i, name in enumerate(names, start=1) if name.isdecimal()]
        layer = "/".join(names[: ends[0]] if ends else names[:-1] or names)
        sums[layer] = sums.get(layer, 0.0) + (leaf.astype("float32") ** 2).sum()
    return sums


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """The values, with words for numbers that JSON cannot express."""
    return {name: x if math.isfinite(x) else str(x) for name, x in values.items()}
