import dataclasses
import io
import tarfile

import pytest

from configs import babi
from transformer.data.sources import DataConfig
from transformer.system.errors import UserError
from transformer.tasks.pair_training import Texts
from transformer.tasks.question_answering import TASK, QuestionAnswering
from transformer.tasks.source_gain import METRICS

DATA = DataConfig(**babi.get_config().data)


@pytest.fixture
def data(tmp_path):
    """Two tasks: ten questions with a digit as answer, and one with two digits."""
    (tmp_path / "raw").mkdir()
    with tarfile.open(tmp_path / "raw" / "babi.tar.gz", "w:gz") as tar:
        for task, answers in {"qa1_one": [*"0123456789"], "qa12_two": ["1,2"]}.items():
            text = "".join(f"1 Well.\n2 Which?\t{answer}\t1\n" for answer in answers)
            for split in ("train", "test"):
                member = tarfile.TarInfo(f"en/{task}_{split}.txt")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    places = {"data_dir": str(tmp_path / "data"), "raw_dir": str(tmp_path / "raw")}
    return dataclasses.replace(DATA, **places)


def test_saved_answers_are_scored_by_task(data):
    found = TASK.rescore(data, "test", [*"0123456780", "1 2"])
    assert {name: score["score"] for name, score in found.items()} == {
        "mean_error": 5.0,
        "failed_tasks": 1,
        "error_qa1_one": 10.0,
        "error_qa12_two": 0.0,
    }
    task = object.__new__(QuestionAnswering)  # without a model: scores need none
    task.data = data
    scores = task.validation_scores(None, Texts("test", [], [*"0123456789", "1 2"], 11 * ["0"]))
    assert scores == {"mean_error": 95.0, "failed_tasks": 2}
    assert {"nll", *scores, *METRICS} == set(TASK.metrics)


def test_data_of_ones_own_and_data_without_tasks(tmp_path):
    QuestionAnswering.check_data(DATA)
    files = {f"{split}_file": str(tmp_path / "x.tsv") for split in ("train", "validation", "test")}
    columns = {"source_field": "question", "target_field": "answer", "has_header": True}
    own = dataclasses.replace(DATA, dataset=None, **files, **columns)
    QuestionAnswering.check_data(own)
    rows = ["question\ttask\tanswer", "who ?\ta\tme", "how ?\tb\tso", "why ?\tb\tno"]
    (tmp_path / "x.tsv").write_text("\n".join(rows))
    found = TASK.rescore(own, "test", ["me", "so", "yes"])
    assert [found[name]["score"] for name in ("error_a", "error_b")] == [0.0, 50.0]
    (tmp_path / "x.tsv").write_text("question\tanswer\na\tb\n")
    with pytest.raises(
        UserError, match=r"has no field 'task' \(data.target_field\); it has: quest"
    ):
        QuestionAnswering.check_pairs(own)
    message = r"task\.name is 'question_answering', .* set data\.dataset to babi/en"
    for changes in ({"dataset": "algorithmic/copy"}, {"train_source": "a", "train_target": "b"}):
        with pytest.raises(UserError, match=message):
            QuestionAnswering.check_data(dataclasses.replace(DATA, **changes))
