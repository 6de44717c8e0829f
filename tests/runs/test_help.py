"""--help of the commands."""

import ast
import re
import subprocess
import sys

import pytest
from scripts import ROOT, run, succeeded

from transformer.__main__ import COMMANDS, FIRST
from transformer.inference.attention_maps import SIDES
from transformer.reports.tables import FORMATS

# Imports each command in a process forked from one that has imported what they share.
LAZY = """
import importlib, os, sys
from transformer.__main__ import COMMANDS
from transformer.runs import cli
for name in COMMANDS:
    if os.fork() == 0:
        importlib.import_module("transformer.commands." + name.replace("-", "_"))
        heavy = {"jax", "matplotlib", "tensorflow_datasets"} & sys.modules.keys()
        print(name, *heavy, flush=True)
        os._exit(0)
    os.wait()
"""


def test_help_takes_no_time():
    """Whoever asks for help does not wait for JAX: seconds."""
    done = subprocess.run([sys.executable, "-c", LAZY], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(COMMANDS), done.stderr


def test_the_commands_have_a_line_each(tmp_path):
    lines = help_of("--help", tmp_path)
    names = [line.split()[0] for line in lines if re.match("  [a-z]", line)]
    assert names == list(dict.fromkeys([*FIRST, *COMMANDS]))
    assert max(map(len, lines)) <= 100
    assert "    python -m transformer COMMAND --flag=value ..." in lines
    refused = run("trian", cwd=tmp_path)
    assert refused.code == 2
    name = "(transformer|.*python.*)"  # the first where the environment is activated
    assert re.fullmatch(f"error: there is no command 'trian'; see {name} --help\n", refused.err)


def help_of(script: str, tmp_path, *flags: str) -> list[str]:
    result = succeeded(run(script, *flags, cwd=tmp_path))
    assert result.err == ""
    return result.out.decode().splitlines()


def flags_in(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"  --(\w+)", line))]


# What is only counted, or compared with what there is.
COUNTED = {"average_last", "layer", "head", "max_words", "max_tokens"}


@pytest.mark.parametrize("file", [*COMMANDS.values(), ROOT / "transformer/system/job_flags.py"])
def test_flags_that_size_something_have_a_bound(file):
    calls = [x for x in ast.walk(ast.parse(file.read_text())) if isinstance(x, ast.Call)]
    for call in calls:
        if ast.unparse(call.func) == "flags.DEFINE_integer" and call.args[0].value not in COUNTED:
            has_bound = "upper_bound" in [keyword.arg for keyword in call.keywords]
            assert has_bound or len(call.args) == 5, call.args[0].value


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_line_and_there_is_an_example(name, tmp_path):
    lines = help_of(name, tmp_path, "--help")
    assert re.match("    python ", next(line for line in lines if "python" in line))
    defined = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', COMMANDS[name].read_text())
    assert set(defined) <= set(flags_in(lines))
    assert max(map(len, lines)) <= 100
    explained = [line.split(None, 1)[1:] for line in lines if re.match("  --", line)]
    names = [line for line in lines if re.match(r"  --\S+$", line)]  # too long for one line
    assert len([words for words in explained if words]) + len(names) == len(explained)


def test_flags_that_choose_a_model_come_first(tmp_path):
    lines = help_of("evaluate.py", tmp_path, "-h")
    found = flags_in(lines)
    assert found[:2] == ["workdir", "checkpoint"]
    assert found.index("split") < found.index("beam_size")
    assert found[-1] == "process_id"
    assert "  --beam_size=N           Hypotheses of each sentence; 1: greedy." in lines
    assert flags_in(help_of("classify", tmp_path, "--help"))[0] == "workdir"


@pytest.mark.parametrize(
    ("name", "flag", "choices"),
    [
        ("visualize", "attention", SIDES),
        ("summary", "format", FORMATS),
    ],
)
def test_choices_are_those_of_the_library(name, flag, choices, tmp_path):
    lines = help_of(name, tmp_path, "--help")
    assert f"  --{flag}={'|'.join(choices)}" in [line.split("   ")[0] for line in lines]
