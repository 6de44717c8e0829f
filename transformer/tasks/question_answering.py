"""Question answering: one model for several tasks, such as bAbI's twenty, scored task by task.

Training and search are those of `seq2seq`: the source is a story and a question, the target the
answer. A task has failed if more than 5 % of its answers are wrong.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer.data.sources import DataConfig, open_source
from transformer.data.splits import SPLITS
from transformer.data.token_files import TokenizedPairs
from transformer.decoding.programs import Variables
from transformer.metrics.accuracy import errors_by_task
from transformer.system.errors import UserError
from transformer.tasks import seq2seq
from transformer.tasks.pair_training import Texts
from transformer.tasks.source_gain import METRICS
from transformer.tasks.task import Metric


class QuestionAnswering(seq2seq.Seq2Seq):
    """A model with its vocabularies: it answers, and counts errors by task."""

    long_lines = "whole"

    @staticmethod
    def check_data(data: DataConfig, references: Sequence[str] = ()) -> None:
        del references
        has_tasks = not data.uses_tfds or str(data.dataset).startswith("babi/")
        if not has_tasks or any("source" in data.given(split) for split in SPLITS):
            raise UserError(
                "task.name is 'question_answering', whose scores are by the task of each question; "
                "set data.dataset to babi/en, or data.train_file and so on to files with a field "
                "'task', or try 'transduction'"
            )

    @staticmethod
    def check_pairs(data: DataConfig, *splits: TokenizedPairs) -> None:
        del splits
        tasks_of(data, "validation")

    @staticmethod
    def text_scores(data: DataConfig, texts: Texts) -> dict[str, dict[str, Any]]:
        return errors_by_task(texts.hypotheses, texts.references, tasks_of(data, texts.split))

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        found = self.text_scores(self.data, texts)
        return {name: found[name]["score"] for name in TASK.metrics if name in found}


def tasks_of(data: DataConfig, split: str) -> list[str]:
    """The task of each question, which is another field beside source and target."""
    source = open_source(dataclasses.replace(data, target_field="task"), split)
    return [task for _, task in source.pairs()]


TASK = seq2seq.TASK._replace(
    metrics={
        "nll": Metric("lower"),
        "mean_error": Metric("lower", full=True),
        "failed_tasks": Metric("lower", full=True),
        **METRICS,
    },
    main_metric="mean_error",
    **seq2seq.functions_of(QuestionAnswering),
    score_test_set=None,
)
