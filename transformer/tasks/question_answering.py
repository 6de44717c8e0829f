"""Question answering: one model for bAbI's twenty tasks, scored task by task.

Training and search are those of `seq2seq`: the source is a story and a question, the target the
answer. A task has failed if more than 5 % of its answers are wrong.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer.data.sources import DataConfig, open_source
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
        if data.uses_files or not str(data.dataset).startswith("babi/"):
            raise UserError(
                "task.name is 'question_answering', whose scores are by the tasks of bAbI; set "
                "data.dataset to babi/en and give no text files, or try 'transduction'"
            )

    @staticmethod
    def text_scores(data: DataConfig, texts: Texts) -> dict[str, dict[str, Any]]:
        # The bAbI task of each question is another feature of the data set.
        source = open_source(dataclasses.replace(data, target_language="task"), texts.split)
        tasks = [task for _, task in source.pairs()]
        return errors_by_task(texts.hypotheses, texts.references, tasks)

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        found = self.text_scores(self.data, texts)
        return {name: found[name]["score"] for name in TASK.metrics if name in found}


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
