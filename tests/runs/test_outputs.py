import hashlib
import json
import os
import re

from transformer.data.test_sets import Input
from transformer.runs.outputs import Destination
from transformer.tasks.task import Outputs

OUTPUTS = Outputs({"hypotheses": ["h"]}, {}, "")
ODD = ["two  spaces ", "\ttab", "line\u2028separator\u0085", '"quotes" ‘’', "", "a\rb", "ä"]


def test_files_are_verbatim(tmp_path):
    outputs = Outputs({"sources": ODD, "hypotheses": ["h"] * 7}, {}, "")
    directory = Destination(tmp_path / "eval", "a/b").write(outputs, {"bleu": {"score": 1.5}})
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
    return Destination(place, name, inputs).write(OUTPUTS, {}).name


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
    folders = [Destination(tmp_path, "null", {"source": x}).write(OUTPUTS, {}) for x in pipes]
    assert folders[0].name == "null" != folders[1].name


def test_nothing_of_the_users_goes_where_outputs_are_written(tmp_path):
    """Files that only look temporary, hours old, as --output_dir=. may have."""
    others = [tmp_path / "mine/thesis.2024.tmp", tmp_path / "run.7.tmp", tmp_path / "test/x.7.tmp"]
    ours = [tmp_path / "test/scores.json.7.tmp", tmp_path / "latest.7.tmp"]
    for path in (*others, *ours):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    Destination(tmp_path, "test").write(OUTPUTS, {})
    assert [path.exists() for path in (*others, *ours)] == [True] * 3 + [False] * 2
