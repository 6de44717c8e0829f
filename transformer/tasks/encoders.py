"""Shared by the encoder-only tasks: vocabulary and rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data.batches import TrainingBatches, layout
from transformer.data.sequences import PackedSequences, evaluation_rows
from transformer.data.wordpiece import WordPiece, train_wordpiece
from transformer.system.errors import UserError
from transformer.system.paths import local
from transformer.system.sharding import row_shards
from transformer.tasks.task import tokens_at_once

# Rows of an evaluation batch on each device; evaluate.py has no batch size to follow.
EVALUATION_ROWS = 16


def check_model(config: Any, heads: tuple[str, ...]) -> None:
    """Raises UserError unless a BERT task can train the model."""
    if config.model.family != "bert":
        raise UserError(
            f"task.name is {config.task.name!r}, which needs model.family 'bert'; it is "
            f"{config.model.family!r}"
        )
    if config.model.head not in heads:
        raise UserError(
            f"model.head is {config.model.head!r}, and task.name is {config.task.name!r}; set "
            f"model.head to {' or '.join(map(repr, heads))}"
        )


def get_tokenizer(config: Any, workdir: Path, begun_with: Any, lines: Callable) -> WordPiece:
    """A run's vocabulary: from the work directory, from init_from, as given, or new."""
    if (workdir / "vocab.txt").exists():
        return WordPiece.load(workdir, workdir)
    if begun_with is not None:
        return begun_with.tokenizer
    if config.tokenizer.source_model:
        return WordPiece.read(Path(local(config.tokenizer.source_model, "tokenizer.source_model")))
    return train_wordpiece(lines, config.tokenizer)


def no_ensemble(members: Sequence[Any]) -> Any:
    """See Task."""
    raise UserError("--ensemble is for translation; leave it out")


def training_batches(
    config: Any, packed: PackedSequences, mesh: jax.sharding.Mesh
) -> TrainingBatches:
    """The order of the rows, and how an update is split into steps; prints both."""
    training, width = config.training, packed.source_width
    at_once = tokens_at_once(training.max_tokens_per_device, mesh)
    rows = layout(training.tokens_per_update, at_once, width, width, row_shards(mesh))
    batches = TrainingBatches(packed, rows, training.seed)
    sequences = len(packed.lengths) / batches.updates_per_epoch
    print(
        f"batches  {rows.rows} rows of {width} tokens, {packed.fill:.1%} full, about "
        f"{sequences:.0f} sequences; {batches.updates_per_epoch:.1f} updates an epoch; "
        f"{rows.accumulation} x {rows.rows_per_step} rows"
    )
    return batches


def rows_to_evaluate(packed: PackedSequences, mesh: jax.sharding.Mesh) -> np.ndarray:
    """All rows, as `evaluation_rows` has them."""
    return evaluation_rows(packed, EVALUATION_ROWS * row_shards(mesh), row_shards(mesh))
