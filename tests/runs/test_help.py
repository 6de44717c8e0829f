"""--help of the scripts."""

import ast
import re

import pytest
from scripts import ROOT, run, succeeded

SCRIPTS = [
    *("train.py", "evaluate.py", "translate.py", "classify", "sweep.py"),
    *("report", "visualize"),
    *("by-length", "ponder"),
    *("generate", "complete", "extract", "parse"),
    *("walkthrough", "image-attention"),
    *("feature-scores", "evalb"),
    "feature-classifier",
    "translated-book",
    *("export", "import-marian"),
]


def help_of(script: str, tmp_path, flag: str = "--help") -> list[str]:
    result = succeeded(run(script, flag, cwd=tmp_path))
    assert result.err == ""
    return result.out.decode().splitlines()


def flags_in(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.match(r"  --(\w+)", line))]


# What is only counted, or compared with what there is.
COUNTED = {"average_last", "layer", "head", "max_words", "max_tokens"}


@pytest.mark.parametrize("script", [*SCRIPTS, "transformer/system/distributed.py"])
def test_flags_that_size_something_have_a_bound(script):
    calls = [x for x in ast.walk(ast.parse((ROOT / script).read_text())) if isinstance(x, ast.Call)]
    for call in calls:
        if ast.unparse(call.func) == "flags.DEFINE_integer" and call.args[0].value not in COUNTED:
            has_bound = "upper_bound" in [keyword.arg for keyword in call.keywords]
            assert has_bound or len(call.args) == 5, call.args[0].value


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_flag_has_a_line_and_there_is_an_example(script, tmp_path):
    lines = help_of(script, tmp_path)
    assert re.match("    python ", next(line for line in lines if "python" in line))
    defined = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', (ROOT / script).read_text())
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
    assert flags_in(help_of("classify", tmp_path))[0] == "workdir"


def test_help_of_train_py(tmp_path):
    lines = help_of("train.py", tmp_path)
    assert "    python train.py --config=configs/base.py --help-config" in lines
    assert "data_dir" not in flags_in(lines)
