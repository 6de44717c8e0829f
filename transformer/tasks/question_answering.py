"""Question answering: one model for bAbI's twenty tasks, scored task by task.

Training and search are those of `seq2seq`: the source is a story and a question, the target the
answer. A task has failed if more than 5 % of its answers are wrong.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from transformer.data.sources import DataConfig, open_source
from transformer.decoding.programs import Variables
from transformer.metrics.accuracy import errors_by_task
from transformer.system.errors import UserError
from transformer.tasks import seq2seq
from transformer.tasks.task import Metric


class QuestionAnswering(seq2seq.Seq2Seq):
    """A model with its vocabularies: it answers, and counts errors by task."""

    long_lines = "whole"

    @staticmethod
    def check_data(data: DataConfig, references: Sequence[str] = ()) -> None:
        del references
        if data.uses_text_files or not str(data.dataset).startswith("babi/"):
            raise UserError(
                "task.name is 'question_answering', whose scores are by the tasks of bAbI; set "
                "data.dataset to babi/en and give no text files, or try 'transduction'"
            )

    def scores(
        self,
        variables: Variables,
        split: str,
        sources: Sequence[str],
        references: Sequence[str],
        hypotheses: Sequence[str],
    ) -> dict[str, dict[str, Any]]:
        return errors_by_task(hypotheses, references, _tasks(self.data, split))

    def validation_scores(self, *arguments: Any) -> dict[str, float]:
        found = self.scores(*arguments)
        return {name: found[name]["score"] for name in TASK.metrics if name in found}


def _tasks(data: DataConfig, split: str) -> list[str]:
    """The bAbI task of each question, another feature of the data set."""
    source = open_source(dataclasses.replace(data, target_language="task"), split)
    return [task for _, task in source.pairs()]


def rescore(data: DataConfig, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """See Task."""
    references = [answer for _, answer in open_source(data, split).pairs()]
    return errors_by_task(hypotheses, references, _tasks(data, split))


TASK = seq2seq.TASK._replace(
    metrics={
        "nll": Metric("lower"),
        "mean_error": Metric("lower", full=True),
        "failed_tasks": Metric("lower", full=True),
    },
    main_metric="mean_error",
    prepare=functools.partial(seq2seq.prepare, kind=QuestionAnswering),
    restore=functools.partial(seq2seq.restore, kind=QuestionAnswering),
    rescore=rescore,
    score_test_set=None,
)
