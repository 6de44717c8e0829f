import dataclasses
import hashlib
import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs import demo, dialogsum_dmca, sagan_cifar10
from transformer.data.test_sets import Input
from transformer.runs import evaluation
from transformer.runs.evaluation import evaluate, next_command, write_outputs
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.tasks.task import Outputs

ODD = ["two  spaces ", "\ttab", "line\u2028separator\u0085", '"quotes" ‘’', "", "a\rb", "ä"]


def test_files_are_verbatim(tmp_path):
    outputs = Outputs({"sources": ODD, "hypotheses": ["h"] * 7}, {}, "")
    directory = write_outputs(tmp_path / "eval", "a/b", outputs, {"bleu": {"score": 1.5}})
    assert directory == tmp_path / "eval" / "a_b"
    text = (directory / "sources.txt").read_bytes().decode()
    assert text.split("\n")[:-1] == ODD
    assert json.loads((directory / "scores.json").read_text()) == {"bleu": {"score": 1.5}}
    assert sorted(path.name for path in directory.iterdir()) == [
        "hypotheses.txt",
        "scores.json",
        "sources.txt",
    ]


def write(place, name="test.en-of-out.de", **paths):
    """The folder of scores of files with these paths."""
    inputs = {role: Input(path, "0" * 64) for role, path in paths.items()}
    return write_outputs(place, name, Outputs({"hypotheses": ["h"]}, {}, ""), {}, inputs).name


def test_files_of_one_name_have_folders_of_their_own(tmp_path):
    name = "test.en-of-out.de"
    inputs = [{"hypotheses": f"/{x}/out.de", "reference": f"/{y}.de"} for x in "ab" for y in "cd"]
    folders = [write(tmp_path, **paths) for paths in inputs]
    assert folders[0] == name
    assert len(set(folders)) == 4
    assert all(re.fullmatch(rf"{name}-[0-9a-f]{{8}}", folder) for folder in folders[1:])
    assert [write(tmp_path, **paths) for paths in inputs] == folders  # again
    assert (tmp_path / "latest").readlink().name == folders[-1]
    scores = json.loads((tmp_path / name / "scores.json").read_text())
    assert scores["inputs"]["hypotheses"] == {"path": "/a/out.de", "sha256": "0" * 64}


def test_what_the_scores_of_earlier_commits_are_of_is_not_known(tmp_path):
    (tmp_path / "test.en").mkdir()
    (tmp_path / "test.en/scores.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/scores.json").write_text("[")  # damaged: to be written again
    assert write(tmp_path, "test.en") == "test.en"  # a split of that name
    assert write(tmp_path, "test.en", source="/test.en") == "test.en-3ade9a70"
    assert write(tmp_path, "other", source="/other") == "other"


def test_pipes_are_known_by_what_came_out_of_them(tmp_path):
    (tmp_path / "in").write_text("a\nb\n")
    whole = hashlib.sha256(b"a\nb\n").hexdigest()
    assert Input.of(str(tmp_path / "in"), ["a", "b"]) == (str(tmp_path / "in"), whole)
    pipes = [Input.of("/dev/null", lines) for lines in (["a", "b"], ["c"])]
    assert pipes[0] == (None, whole)
    outputs = Outputs({"hypotheses": ["h"]}, {}, "")
    folders = [write_outputs(tmp_path, "null", outputs, {}, {"source": x}).name for x in pipes]
    assert folders[0] == "null" != folders[1]


def model_of(workdir, config, output_dir=None, **places):
    task = SimpleNamespace(
        data=dataclasses.replace(config.data, **places),
        translator=SimpleNamespace(config=config.decoding),
        evaluate=lambda *_: Outputs({"hypotheses": ["h"]}, {}, ""),
        provenance=dict,
    )
    whole = workdir, config, task, [3], "best", 3, False, {}, {}
    return TrainedModel(*whole, output_dir=output_dir)


def scores_of(workdir, config, split, output_dir=None, **places):
    """The folder and the scores.json of an evaluation with other places of data."""
    evaluate(model_of(workdir, config, output_dir, **places), split)
    place = output_dir or workdir / "eval"
    folder = (place / "latest").readlink()
    return str(folder), json.loads((place / folder / "scores.json").read_text())


@pytest.mark.parametrize(
    ("split", "places", "folder"),
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


def test_other_data_of_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config.from_dict(dialogsum_dmca.get_config().to_dict())
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, raw_dir="genia"))
    for folder in ("genia", "a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a/test.jsonl").write_text("{}\n")
    places = [{"raw_dir": "a/raw"}, {"raw_dir": "b/raw"}, {"raw_dir": "a/raw"}, {}]
    folders = [scores_of(tmp_path, config, "test", **place)[0] for place in places]
    assert folders[0] == folders[2] == "test-raw_dir=raw"
    assert folders[1].startswith("test-raw_dir=raw-")
    assert folders[3] == "test"
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, test_file="genia"))
    _, scores = scores_of(tmp_path, config, "test", test_file="a/test.jsonl")
    expected = {
        "path": str(tmp_path / "a/test.jsonl"),
        "sha256": hashlib.sha256(b"{}\n").hexdigest(),
    }
    assert scores["inputs"] == {"test_file": expected}


def test_nothing_of_the_users_goes_where_outputs_are_written(tmp_path):
    """Files that only look temporary, hours old, as --output_dir=. may have."""
    others = [tmp_path / "mine/thesis.2024.tmp", tmp_path / "run.7.tmp", tmp_path / "test/x.7.tmp"]
    ours = [tmp_path / "test/scores.json.7.tmp", tmp_path / "latest.7.tmp"]
    for path in (*others, *ours):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    write_outputs(tmp_path, "test", Outputs({"hypotheses": ["a"]}, {}, ""), {})
    assert [path.exists() for path in (*others, *ours)] == [True] * 3 + [False] * 2


def test_another_place_for_outputs(tmp_path):
    """It may be that of several runs; a work directory is not written to then."""
    config = Config.from_dict(dialogsum_dmca.get_config().to_dict())
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / "eval").write_text("no folder")
        with pytest.raises(
            UserError, match=r"eval/test/.*: Not a directory; .* with --output_dir$"
        ):
            evaluation._check_place(model_of(place, config), "test")
    found = [scores_of(place, config, "test", tmp_path / "out") for place in places]
    assert found[0] == found[2]
    assert [found[0][0], found[1][0].partition("-")[0]] == ["test", "test"]
    assert found[0][0] != found[1][0]
    assert found[0][1]["inputs"] == {"workdir": {"path": str(tmp_path / "a"), "sha256": None}}


@pytest.mark.parametrize(
    ("split", "places"),
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


# --- What is advertised at the end of a run -----------------------------------------------


def advertised(preset, data=None, **task) -> list[str] | None:
    """The words of the command, without those that run the script."""
    config = Config.from_dict(preset.get_config().to_dict())
    task = SimpleNamespace(data=data or config.data, **task)
    command = next_command(config, task, Path("my runs/it's"))
    if command is None:
        return None
    words = shlex.split(command)
    assert words.pop(-2) == "--workdir=my runs/it's"
    return [Path(words[-2]).stem, words[-1]]


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"test", "validation"}, ["evaluate", "--split=test"]),
        ({"validation"}, ["evaluate", "--split=validation"]),
        (set(), None),
    ],
)
def test_a_split_that_is_there_is_advertised(splits, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one\ntwo\n")
    files = {f"{split}_{side}": "text" for split in splits for side in ("source", "target")}
    files |= {"train_source": "text", "train_target": "gone"}
    data = Config.from_dict(demo.get_config().to_dict()).data
    assert advertised(demo, dataclasses.replace(data, **files)) == expected


def test_images_without_a_classifier_are_only_generated(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((3, 32, 32, 3), np.uint8))
    data = Config.from_dict(sagan_cifar10.get_config().to_dict()).data
    data = dataclasses.replace(data, train_images="x", test_images=str(tmp_path / "images.npy"))
    assert advertised(sagan_cifar10, data, classifier=3) == ["evaluate", "--split=test"]
    assert advertised(sagan_cifar10, data) == ["generate", "--grid=samples.png"]
