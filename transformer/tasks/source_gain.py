"""Does a model use its sources? Source gain, and how many of its outputs differ."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import logging

from transformer.data.batches import EvaluationBatches
from transformer.data.token_files import TokenizedPairs
from transformer.decoding.batching import CPU_TOKENS
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.programs import Variables
from transformer.system import distributed
from transformer.system.sharding import row_shards
from transformer.tasks.task import Metric, from_model, mean_nll

PAIRS = 256  # the most whose targets are predicted twice
# A model ignores its source if it gains less, in nats per token, and fewer of its outputs differ.
LEAST_GAIN, LEAST_DISTINCT = 0.1, 0.5

METRICS = {
    "source_gain": Metric("higher", full=True),
    "distinct": Metric("higher", full=True),
    "commonest": Metric("lower", full=True),
}
DEFINITIONS = {
    "source_gain": "nats per token that the own source saves, compared with another example's; "
    f"the same {PAIRS} pairs each time, or all if there are fewer",
    "distinct": "number of different outputs",
    "commonest": "per cent of the outputs that are the most frequent one",
}


def source_scores(
    task: Any,  # a Seq2Seq
    variables: Variables,
    sources: Sequence[str],
    references: Sequence[str],
    hypotheses: Sequence[str],
    *,
    like: EvaluationBatches | None = None,
    check: Callable[..., None] = lambda done: None,
    warns: bool = True,
) -> dict[str, dict[str, Any]]:
    """Scores in the form of Outputs.scores; all processes call it.

    Without `source_gain` for an ensemble, which has no loss, and if all sources are the same.

    like: batches for whose shape the task's program is compiled. check: is called often.
    warns: whether to warn of a model that ignores its source.
    """
    commonest = max(collections.Counter(hypotheses).values())
    found = {"distinct": len(set(hypotheses)), "commonest": 100 * commonest / len(hypotheses)}
    numbers, others = sample(sources)
    if numbers and not isinstance(task.model, Ensemble):
        # A line of a whole book would fill the memory.
        most = max(CPU_TOKENS, task.data.max_source_length, task.data.max_target_length)

        def nats(of: Sequence[int]) -> float:
            """The nats per token of the sample's references after these sources."""
            texts = [sources[i] for i in of], [references[i] for i in numbers]
            sides = [[x[:most] for x in side] for side in task.translator.token_pairs(*texts)]
            return mean_nll(task.measured(*variables, in_batches(task, *sides, like), check))

        gain = found["source_gain"] = nats(others) - nats(numbers)
        is_ignored = gain < LEAST_GAIN and found["distinct"] < LEAST_DISTINCT * len(hypotheses)
        if warns and is_ignored and distributed.is_first():
            logging.warning(
                "the model ignores its source: of %d outputs only %d differ, and a target is as "
                "probable after another example's source (source gain %.3f nats per token)",
                *(len(hypotheses), found["distinct"], gain),
            )
    return from_model(found, DEFINITIONS)


def sample(sources: Sequence[str]) -> tuple[list[int], list[int]]:
    """The numbers of PAIRS examples, and for each that of an example with another source.

    Each takes the source of the next one, in an order that depends only on their number; equal
    sources are passed over. Empty if all are equal.
    """
    order = np.random.default_rng(0).permutation(len(sources))[:PAIRS].tolist()
    following = [order[i:] + order[:i] for i in range(len(order))]
    others = [
        next((j for j in after if sources[j] != sources[after[0]]), None) for after in following
    ]
    return ([], []) if None in others else (order, others)


def in_batches(
    task: Any,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    like: EvaluationBatches | None = None,
) -> EvaluationBatches:
    """The pairs of token ids in batches of the shape of `like`; without it, a pair in each row."""
    sides = [(np.concatenate(side), np.cumsum([0, *map(len, side)])) for side in (sources, targets)]
    pairs = TokenizedPairs(*sides[0], *sides[1], report={})
    if like:
        widths, rows = (like.packed.source_width, like.packed.target_width), len(like.rows(0))
    else:
        widths = int(pairs.source_lengths.max()), int(pairs.target_lengths.max())
        rows = row_shards(task.mesh) * max(1, CPU_TOKENS // max(widths))
    packing = like is not None and task.data.packing
    return EvaluationBatches.of_pairs(pairs, *widths, rows, row_shards(task.mesh), packing)
