"""Commands in messages: they work in the shell in which the process was started."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transformer
from transformer.system import commands
from transformer.system.commands import ROOT, command, script
from transformer.tasks.feature_classifier import how_to_train_one

PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("typed", "argv", "found", "expected"),
    [
        ("python train.py", "train.py", {"python": PYTHON}, "python evaluate.py"),
        ("python3 train.py", "train.py", {"python": "/usr/bin/python"}, f"{PYTHON} evaluate.py"),
        ("python train.py", "./train.py", {"python3": PYTHON}, "python3 evaluate.py"),
        ("python x", f"{ROOT}/train.py", {"python": PYTHON}, f"python {ROOT}/evaluate.py"),
        (
            f"{PYTHON} /venv/bin/transformer-train",
            f"{ROOT}/train.py",
            {"transformer-evaluate": "/venv/bin/transformer-evaluate"},
            "transformer-evaluate",
        ),
        (
            f"{PYTHON} /venv/bin/transformer-train",
            f"{ROOT}/train.py",
            {"transformer-evaluate": "/other/bin/transformer-evaluate"},
            "/venv/bin/transformer-evaluate",
        ),
        # The value of a flag does not tell how the process began.
        ("python train.py x/transformer-train", "train.py", {}, f"{PYTHON} evaluate.py"),
        ("python -m pytest", "/x/pytest/__main__.py", {}, f"{PYTHON} evaluate.py"),
    ],
)
def test_a_script_calls_others_as_it_was_called(typed, argv, found, expected, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "orig_argv", typed.split())
    monkeypatch.setattr(sys, "argv", [argv])
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(shutil, "which", found.get)
    assert command("evaluate") == expected
    assert script("evaluate") == Path(expected.split()[-1]).name
    own_python = expected.split()[0] if " " in expected else PYTHON
    assert (
        command("transformer.exports", "--a=b c") == f"{own_python} -m transformer export '--a=b c'"
    )


def test_elsewhere_the_path_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_is_found", lambda name, path: False)
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert shlex.split(command("evaluate")) == [sys.executable, str(ROOT / "evaluate.py")]
    monkeypatch.setattr(commands, "_is_found", lambda name, path: name.startswith("transformer"))
    assert command("evaluate") == "transformer-evaluate"


def test_how_to_train_a_classifier():
    words = shlex.split(how_to_train_one().partition(" says")[0])
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--epochs=N" in done.stdout


# RESULTS.md has commands for readers of the repository.
APART = "commands.py", "console.py", "results_page.py"


def test_no_message_names_a_script_by_itself():
    """Where messages do, the name is right for some ways to start alone."""
    named = re.compile(
        r"python -m|\b(train|evaluate|translate|classify|sweep|complete|extract|generate)\.py\b"
    )
    found = []
    for path in Path(transformer.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            ast.get_docstring(x, clean=False)
            for x in ast.walk(tree)
            if hasattr(x, "body") and isinstance(x, ast.Module | ast.ClassDef | ast.FunctionDef)
        }
        found += [
            f"{path}:{x.lineno}: {x.value}"
            for x in ast.walk(tree)
            if isinstance(x, ast.Constant)
            and isinstance(x.value, str)
            and " " in x.value  # else it is the name of a file
            and x.value not in docs
            and named.search(x.value)
            and path.name not in APART
        ]
    assert not found
