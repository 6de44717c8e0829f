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

PYTHON, OURS = "/venv/bin/python", "/venv/bin/transformer"
WITH = {"python": PYTHON}


@pytest.mark.parametrize(
    ("argv", "found", "expected", "moved"),
    [
        ("train.py", WITH, "python evaluate.py", "python -m transformer"),
        ("train.py", {"python": "/x/python"}, f"{PYTHON} evaluate.py", f"{PYTHON} -m transformer"),
        ("./train.py", {"python3": PYTHON}, "python3 evaluate.py", "python3 -m transformer"),
        (f"{ROOT}/train.py", WITH, f"python {ROOT}/evaluate.py", "python -m transformer"),
        (f"{ROOT}/transformer/__main__.py", WITH, "python evaluate.py", "python -m transformer"),
        (OURS, {"transformer": OURS}, "transformer evaluate", "transformer"),
        (OURS, {"transformer": "/x/transformer"}, f"{OURS} evaluate", OURS),
        ("/x/pytest/__main__.py", {}, f"{PYTHON} evaluate.py", f"{PYTHON} -m transformer"),
    ],
)
def test_a_command_calls_others_as_it_was_called(argv, found, expected, moved, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [argv])
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(shutil, "which", found.get)
    assert command("evaluate") == expected
    is_script = expected.endswith(".py")
    assert script("evaluate") == ("evaluate.py" if is_script else "transformer evaluate")
    assert command("by-length", "--a=b c") == f"{moved} by-length '--a=b c'"
    assert script("by-length") == "transformer by-length"


def test_elsewhere_the_path_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_is_found", lambda name, path: False)
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert shlex.split(command("evaluate")) == [sys.executable, str(ROOT / "evaluate.py")]
    whole = [sys.executable, str(ROOT / "transformer"), "export"]
    assert shlex.split(command("export")) == whole
    done = subprocess.run([*whole, "--help"], capture_output=True, text=True, check=True)
    assert "--quantization=" in done.stdout
    monkeypatch.setattr(commands, "_is_found", lambda name, path: name == "transformer")
    assert command("evaluate") == "transformer evaluate"


# RESULTS.md has commands for readers of the repository.
APART = "commands.py", "__main__.py", "results_page.py"


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
