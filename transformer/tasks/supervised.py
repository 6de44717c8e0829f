"""The base of tasks that learn from examples: batches, the update, validation.

A model has a `loss(batch, rngs, label_smoothing)`, and the examples of a split are packed into rows
(data/rows.py). All else has a default here. docs/add-a-task.md has an example.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer.data.batches import EvaluationBatches, TrainingBatches, layout
from transformer.data.rows import PackedRows
from transformer.models.family import Sizes
from transformer.models.functional import FunctionalModel, Params
from transformer.system.sharding import distribute, row_shards, split_rows
from transformer.tasks.task import (
    Examples,
    Facts,
    TrainingTask,
    data_id,
    mean_nll,
    tokens_at_once,
)
from transformer.training.step import TrainState, make_nll_step, make_train_step

# Rows of an evaluation batch on each device; evaluate.py has no batch size to follow.
EVALUATION_ROWS = 16


class Supervised:
    """A trained model, as TrainedTask has it, that measures examples.

    data: the data section of its config.
    """

    classes: list[str] | None = None

    def __init__(self, data: Any, model: FunctionalModel, mesh: jax.sharding.Mesh):
        self.data = data
        self.model = model
        self.mesh = mesh

    @functools.cached_property
    def measure(self) -> Any:
        """The jitted (params, extra, batch) -> what scores need of a batch; here its Loss."""
        return make_nll_step(self.model, self.mesh)

    def in_batches(self, packed: PackedRows, rows: int | None = None) -> EvaluationBatches:
        """All rows of a split, `rows` at a time; without it, EVALUATION_ROWS on each device."""
        shards = row_shards(self.mesh)
        return EvaluationBatches(packed, rows or EVALUATION_ROWS * shards, shards)

    def on_devices(self, batches: EvaluationBatches) -> Iterator[Any]:
        for number in range(len(batches)):
            rows = batches.rows(number)
            yield distribute(batches.packed.batch, rows, split_rows(self.mesh, axis=0))

    def measured(
        self,
        params: Params,
        extra: dict,
        batches: EvaluationBatches,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Any]:
        """What `measure` finds in each batch; `progress` is called with the examples begun."""
        found, done = [], 0
        for number, batch in enumerate(self.on_devices(batches)):
            done += len(batches.packed.pairs_of(batches.rows(number)))
            progress(done)
            found.append(self.measure(params, extra, batch))
        return jax.device_get(found)


def training_batches(
    config: Any, packed: PackedRows, mesh: jax.sharding.Mesh, width: str
) -> TrainingBatches:
    """The order of the rows, and how an update is split into steps; prints both.

    width: of a row, for people to read.
    """
    training, widths = config.training, (packed.source_width, packed.target_width)
    at_once = tokens_at_once(training.max_tokens_per_device, mesh)
    rows = layout(training.tokens_per_update, at_once, *widths, row_shards(mesh))
    batches = TrainingBatches(packed, rows, training.seed)
    print(
        f"batches  {rows.rows} rows of {width} tokens, {packed.fill:.1%} full, about "
        f"{len(packed.sides[0]) / batches.updates_per_epoch:.0f} examples; "
        f"{batches.updates_per_epoch:.1f} updates an epoch; {rows.accumulation} x "
        f"{rows.rows_per_step} rows"
    )
    return batches


class SupervisedTraining(TrainingTask):
    """A model and its examples, packed into the rows of batches over a mesh.

    kind: a word for an example, for people to read.
    """

    kind = "example"

    def __init__(
        self,
        config: Any,  # a Config
        task: Supervised,
        batches: TrainingBatches,
        validation: EvaluationBatches,
        sizes: Sizes,
        hashes: Sequence[str],
    ):
        """hashes: of the examples of all splits, and of vocabularies."""
        self.training = config.training
        self.mesh = task.mesh
        self.task = task
        self.batches = batches
        self.packed = batches.packed
        self.validation = validation
        self.data_id = data_id(*hashes, batches.fingerprint)
        self.num_tokens = self.packed.num_tokens
        self.flops = float(config.family.flops(config.model, sizes, *self.packed.sides).sum())

    def batch(self, number: int) -> tuple[Any, int]:
        rows = self.batches.rows(number)
        batch = distribute(self.packed.batch, rows, split_rows(self.mesh, axis=1))
        return batch, self.packed.num_tokens_of(rows)

    def make_step(self, optimizer):
        return make_train_step(self.task.model, optimizer, self.training, self.mesh)

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        batch, variables = next(self.task.on_devices(self.validation)), (state.params, state.extra)
        self.task.measure = self.task.measure.lower(*variables, batch).compile()
        jax.block_until_ready(self.task.measure(*variables, batch))
        return {"validation step": self.task.measure}

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        del full  # there are no further metrics
        found = self.task.measured(state.params, state.extra, self.validation, check)
        return self.metrics(found), Examples()

    def metrics(self, found: list[Any]) -> dict[str, float]:
        """The metrics of validation, from what `measure` has found in its batches."""
        return {"nll": mean_nll(found)}

    def examples(self, number: int) -> list[dict[str, Any]]:
        return [self.shown(int(i)) for i in self.packed.pairs_of(self.batches.rows(number))]

    def shown(self, number: int) -> dict[str, Any]:
        """A training example, for people to read."""
        return {self.kind: number}

    def facts(self) -> Facts:
        splits = {"training": self.packed, "validation": self.validation.packed}
        counts = {f"{name} {self.kind}s": len(x.sides[0]) for name, x in splits.items()}
        lengths = np.bincount(self.packed.sides[0]).tolist()
        return Facts(counts, {f"tokens of {self.kind}s": lengths})
