"""Transduction of symbol sequences, scored by how many are exactly right.

Training and search are those of `seq2seq`, with other scores. Spaces separate symbols, so the text
needs a vocabulary of whole words. With decoding.beam_size 1 the search is greedy.

Free-running scores rate the output of the search. Those that begin with `forced` rate the model's
next-symbol predictions after the true symbols, as Tensor2Tensor measures.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from transformer.data.sources import DataConfig, PairSource, open_source
from transformer.decoding.programs import Variables
from transformer.metrics.accuracy import corpus_accuracies
from transformer.tasks import seq2seq
from transformer.tasks.task import Metric

FORCED_DEFINITION = "{} after the true tokens before it (teacher forcing)"


class Transduction(seq2seq.Seq2Seq):
    """A model with its vocabulary: it transduces, and counts exact matches."""

    long_lines = "whole"

    @staticmethod
    def check_data(data: DataConfig, references: Sequence[str] = ()) -> None:
        del data, references  # any text will do

    def prepare(self, variables: Variables, source: PairSource) -> dict[str, jax.stages.Compiled]:
        pairs = self.translator.token_pairs(*zip(*source.pairs(), strict=True))
        forced = self.translator.forced.prepare(variables, *pairs)
        return super().prepare(variables, source) | forced

    def scores(
        self,
        variables: Variables,
        split: str,
        sources: Sequence[str],
        references: Sequence[str],
        hypotheses: Sequence[str],
    ) -> dict[str, dict[str, Any]]:
        pairs = self.translator.token_pairs(sources, references)
        forced = self.translator.forced.decode(variables, *pairs)
        hits = [found.expected_T == target for found, target in zip(forced, pairs[1], strict=True)]
        forced = {
            "forced_accuracy": (
                100 * sum(int(hit.sum()) for hit in hits) / sum(map(len, hits)),
                "per cent of the references' tokens, EOS included, each the most probable one",
            ),
            "forced_sequence_accuracy": (
                100 * sum(bool(hit.all()) for hit in hits) / len(hits),
                "per cent of the references whose tokens are all the most probable ones",
            ),
        }
        return corpus_accuracies(hypotheses, references) | {
            name: {
                "score": score,
                "definition": FORCED_DEFINITION.format(definition),
                "needs_model": True,
            }
            for name, (score, definition) in forced.items()
        }

    def validation_scores(self, *arguments: Any) -> dict[str, float]:
        return {name: score["score"] for name, score in self.scores(*arguments).items()}


def rescore(data: DataConfig, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """See Task; returns the free-running scores."""
    references = [reference for _, reference in open_source(data, split).pairs()]
    return corpus_accuracies(hypotheses, references)


TASK = seq2seq.TASK._replace(
    metrics={
        "nll": Metric("lower"),
        "accuracy": Metric("higher", full=True),
        "sequence_accuracy": Metric("higher", full=True),
        "forced_accuracy": Metric("higher", full=True),
        "forced_sequence_accuracy": Metric("higher", full=True),
    },
    main_metric="sequence_accuracy",
    prepare=functools.partial(seq2seq.prepare, kind=Transduction),
    restore=functools.partial(seq2seq.restore, kind=Transduction),
    rescore=rescore,
    score_test_set=None,
)
