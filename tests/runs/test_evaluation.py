import dataclasses
import json
from types import SimpleNamespace

import pytest

from configs import dialogsum_dmca
from transformer.runs.evaluation import evaluate, write_outputs
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.tasks.task import Outputs

ODD = ["two  spaces ", "\ttab", "line\u2028separator\u0085", '"quotes" ‘’', "", "a\rb", "ä"]


def test_files_are_verbatim(tmp_path):
    outputs = Outputs({"sources": ODD, "hypotheses": ["h"] * 7}, {}, "")
    directory = write_outputs(tmp_path, "a/b", outputs, {"bleu": {"score": 1.5}})
    assert directory == tmp_path / "eval" / "a_b"
    text = (directory / "sources.txt").read_bytes().decode()
    assert text.split("\n")[:-1] == ODD
    assert json.loads((directory / "scores.json").read_text()) == {"bleu": {"score": 1.5}}
    assert sorted(path.name for path in directory.iterdir()) == [
        "hypotheses.txt",
        "scores.json",
        "sources.txt",
    ]


def scores_of(workdir, config, split, **places):
    """The folder and the scores.json of an evaluation with other places of data."""
    task = SimpleNamespace(
        data=dataclasses.replace(config.data, **places),
        translator=SimpleNamespace(config=config.decoding),
        evaluate=lambda *_: Outputs({"hypotheses": ["h"]}, {}, ""),
        provenance=dict,
    )
    evaluate(TrainedModel(workdir, config, task, [3], "best", 3, False, {}, {}), split)
    folder = (workdir / "eval/latest").readlink()
    return str(folder), json.loads((workdir / "eval" / folder / "scores.json").read_text())


@pytest.mark.parametrize(
    ("split", "key_values", "folder"),
    [
        ("test", {"raw_dir": "other/craft/"}, "test-raw_dir=craft"),
        ("validation", {"raw_dir": "craft"}, "validation-raw_dir=craft"),
        ("test", {"test_file": "later.jsonl"}, "test-test_file=later.jsonl"),
    ],
)
def test_other_data_have_a_folder_of_their_own(tmp_path, monkeypatch, split, places, folder):
    monkeypatch.chdir(tmp_path)
    config = Config.from_dict(dialogsum_dmca.get_config().to_dict())
    own = {"raw_dir": "genia", "test_file": "dev.jsonl"}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **own))
    # What the config names is not there, so that the data may have moved: the folder is the usual.
    assert scores_of(tmp_path, config, split, **places)[0] == split
    for name in own.values():
        (tmp_path / name).touch()
    found, scores = scores_of(tmp_path, config, split, **places)
    assert (found, scores["data"]) == (folder, places)


@pytest.mark.parametrize(
    ("split", "key_values"),
    [
        ("test", {"raw_dir": "./genia/"}),  # the same folder
        ("test", {"data_dir": "elsewhere"}),
        ("validation", {"test_file": "later.jsonl"}),  # which is not read
    ],
)
def test_the_data_of_the_config_are_not_named(tmp_path, split, places):
    config = Config.from_dict(dialogsum_dmca.get_config().to_dict())
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, raw_dir="genia"))
    found, scores = scores_of(tmp_path, config, split, **places)
    assert found == split
    assert "data" not in scores
