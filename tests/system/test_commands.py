"""Commands in messages: they work in the shell in which the process was started."""

import shlex
import shutil
import subprocess
import sys

import pytest

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
    assert command("import-marian", "--a=b c") == f"{moved} import-marian '--a=b c'"
    assert script("import-marian") == "transformer import-marian"


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
