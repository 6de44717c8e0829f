import dataclasses
import hashlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs import demo, dialogsum_dmca, sagan_cifar10
from transformer.runs.evaluation import destination_of, evaluate, next_command
from transformer.runs.restore import Chosen, TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.tasks.task import Outputs


def model_of(workdir, config, output_dir=None, **places):
    task = SimpleNamespace(
        data=dataclasses.replace(config.data, **places),
        translator=SimpleNamespace(config=config.decoding),
        evaluate=lambda *_: Outputs({"hypotheses": ["h"]}, {}, ""),
        provenance=dict,
    )
    chosen = Chosen("best", [3], 3, False)
    return TrainedModel(workdir, config, task, chosen, {}, {}, output_dir)


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
        # The same folder, one for what can be had again, and a file that is not read.
        ("test", {"raw_dir": "./genia/"}, "test"),
        ("test", {"data_dir": "elsewhere"}, "test"),
        ("validation", {"test_file": "later.jsonl"}, "validation"),
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
    assert (found, scores.get("data")) == (folder, None if folder == split else places)


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
            destination_of(model_of(place, config), "test").check()
    found = [scores_of(place, config, "test", tmp_path / "out") for place in places]
    assert found[0] == found[2]
    assert [found[0][0], found[1][0].partition("-")[0]] == ["test", "test"]
    assert found[0][0] != found[1][0]
    assert found[0][1]["inputs"] == {"workdir": {"path": str(tmp_path / "a"), "sha256": None}}


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
