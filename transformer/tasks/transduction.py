"""Transduction of symbol sequences, scored by how many are exactly right.

Training and search are those of `seq2seq`, with other scores. Spaces separate symbols, so the text
needs a vocabulary of whole words. With decoding.beam_size 1 the search is greedy.

Free-running scores rate the output of the search. Those that begin with `forced` rate the model's
next-symbol predictions after the true symbols, as Tensor2Tensor measures.
"""

from collections.abc import Sequence
from typing import Any

import jax

from transformer.data.pairs import PairSource
from transformer.data.sources import DataConfig
from transformer.decoding.programs import Variables
from transformer.metrics.accuracy import corpus_accuracies
from transformer.tasks import seq2seq
from transformer.tasks.pair_training import Texts
from transformer.tasks.source_gain import METRICS
from transformer.tasks.task import Metric, from_model

AFTER = "after the true tokens before it (teacher forcing)"
DEFINITIONS = {
    "forced_accuracy": "per cent of the references' tokens, EOS included, each the most probable "
    f"one {AFTER}",
    "forced_sequence_accuracy": "per cent of the references whose tokens are all the most probable "
    f"ones {AFTER}",
}


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

    @staticmethod
    def text_scores(data: DataConfig, texts: Texts) -> dict[str, dict[str, Any]]:
        return corpus_accuracies(texts.hypotheses, texts.references)

    def model_scores(self, variables: Variables, texts: Texts) -> dict[str, dict[str, Any]]:
        pairs = self.translator.token_pairs(texts.sources, texts.references)
        forced = self.translator.forced.decode(variables, *pairs)
        hits = [found.expected_T == target for found, target in zip(forced, pairs[1], strict=True)]
        found = {
            "forced_accuracy": 100 * sum(int(hit.sum()) for hit in hits) / sum(map(len, hits)),
            "forced_sequence_accuracy": 100 * sum(bool(hit.all()) for hit in hits) / len(hits),
        }
        return from_model(found, DEFINITIONS)

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        found = self.text_scores(self.data, texts) | self.model_scores(variables, texts)
        return {name: score["score"] for name, score in found.items()}


TASK = seq2seq.TASK._replace(
    metrics={
        "nll": Metric("lower"),
        "accuracy": Metric("higher", full=True),
        "sequence_accuracy": Metric("higher", full=True),
        "forced_accuracy": Metric("higher", full=True),
        "forced_sequence_accuracy": Metric("higher", full=True),
        **METRICS,
    },
    main_metric="sequence_accuracy",
    **seq2seq.functions_of(Transduction),
    score_test_set=None,
)
