"""What is noted of a run's starts."""

from pathlib import Path

import jax
import pytest

from transformer.runs.provenance import PACKAGES, ROOT, add_start, conditions, relative, starts
from transformer.system.errors import UserError


def test_starts_from_the_last_beginning_on(tmp_path):
    assert starts(tmp_path) == []
    for step, commit in ((0, "a"), (0, "b"), (20, "b"), (40, "c")):
        add_start(tmp_path, {"step": step, "commit": commit})
    assert [(s["step"], s["commit"]) for s in starts(tmp_path)] == [(0, "b"), (20, "b"), (40, "c")]
    assert [path.name for path in tmp_path.iterdir()] == ["starts.jsonl"]


def test_a_damaged_file(tmp_path):
    (tmp_path / "starts.jsonl").write_text('{"step": 0}\n{"st')
    with pytest.raises(UserError, match=r"starts\.jsonl, line 2: it is damaged"):
        starts(tmp_path)


def test_conditions():
    found = conditions()
    assert {*PACKAGES, "command", "commit", "device", "cpu", "python"} == found.keys()
    assert found["jax"] == jax.__version__
    assert found["device"] == f"{len(jax.devices())} x cpu"


def test_the_commit_of_a_copy_without_git(monkeypatch):
    monkeypatch.setattr("transformer.runs.provenance.ROOT", Path("/"))
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    assert conditions()["commit"] == "unknown"
    monkeypatch.setenv("GIT_COMMIT", "abc1234")
    assert conditions()["commit"] == "abc1234"


@pytest.mark.parametrize(
    ("path", "expected"),
    [(f"{ROOT}/configs/base.py", "configs/base.py"), ("/tmp/x.py", "/tmp/x.py"), ("../a", "../a")],
)
def test_relative(path, expected, tmp_path):
    assert relative(path) == expected
    (tmp_path / "link").symlink_to(ROOT)
    assert relative(str(tmp_path / "link" / "configs" / "base.py")) == "configs/base.py"
