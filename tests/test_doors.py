"""The pages for contributors: each is applied as a whole to a copy of the project, and trained."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import environment

from transformer.data.labelled_text import Example
from transformer.runs.provenance import ROOT

SMALL = (
    *("--config.training.steps=2", "--config.training.checkpoint_every=2"),
    *("--config.training.full_validation_every=0", "--config.tokenizer.vocab_size=340"),
    *("--config.training.tokens_per_update=500", "--config.training.best_metric=nll"),
)
BLOCK = re.compile(r"^## .*?(?:: (\S+\.py))?$|^```(\w+)\n(.*?)^```", re.M | re.S)


@pytest.fixture
def copy(tmp_path):
    """A copy of the project's code, to which pages are applied."""
    for name in ("transformer", "configs"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignore)
    for name in ("train.py", "evaluate.py", "translate.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def patch(text: str, hunk: str) -> str:
    """The text with the lines of a hunk of `diff -u`; its context says where."""
    lines = hunk.splitlines(keepends=True)
    old, new = ("".join(x[1:] for x in lines if x[0] in kinds) for kinds in (" -", " +"))
    assert text.count(old) == 1, old
    return text.replace(old, new)


def apply(page: str, copy: Path) -> list[str]:
    """Does what a page says, and gives the training commands that it names.

    A Python block is the whole file that the heading before it names.
    """
    commands, path = [], None
    for heading, language, text in BLOCK.findall((ROOT / "docs" / page).read_text()):
        if not language:
            path = heading
        elif language == "python":
            (copy / path).write_text(text)
        elif language == "diff":
            edited = copy / re.search(r"^\+\+\+ b/(\S+)", text, re.M)[1]
            for hunk in text.split("@@\n")[1:]:
                edited.write_text(patch(edited.read_text(), hunk))
        elif language == "sh":
            for line in text.splitlines():
                if line.startswith("python train.py"):
                    commands.append(line)
                else:
                    subprocess.run(line, shell=True, check=True, cwd=copy)
    return commands


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


LAYERS = [f"--config.model.num_{side}_layers=1" for side in ("encoder", "decoder")]


@pytest.mark.slow  # the demo's data are made, and models compiled
@pytest.mark.parametrize(
    ("page", "flags"),
    [
        ("add-an-option.md", LAYERS),
        ("add-a-family.md", ()),
        ("add-a-task.md", ("--config.tokenizer.vocab_size=50",)),
    ],
)
def test_a_page_can_be_followed_and_its_model_trains(page, flags, copy, data):
    (command,) = apply(page, copy)
    words = [sys.executable, *command.split()[1:], *SMALL, *flags]
    words.append(f"--config.data.data_dir={data}")
    variables = os.environ | environment() | {"PYTHONPATH": str(copy)}
    done = subprocess.run(words, cwd=copy, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert "done     2 steps" in done.stdout


def test_the_score_of_the_new_task():
    """Of five pairs of sentences with other labels, three are in order; one pair is equal."""
    text = (ROOT / "docs/add-a-task.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text.partition("## 2.")[0], re.M | re.S)
    names = {}
    exec(code, names)
    given = [Example("a", "", "0"), Example("a", "", "1"), Example("a", "", "2")]
    given += [Example("b", "", "0"), Example("b", "", "1"), Example("b", "", "1")]
    numbers = ["0.1", "0.3", "0.2", "0.5", "0.5", "0.7"]
    found = names["Ranking"].scores_of(None, numbers, given)
    assert found["order"]["score"] == pytest.approx(100 * 3 / 5)
    assert names["TASK"].main_metric in names["TASK"].metrics
    assert len(code.splitlines()) <= 120
