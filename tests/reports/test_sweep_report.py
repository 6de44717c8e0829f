"""The table of a sweep, at any time."""

import dataclasses
import json
import math

import pytest
from small_configs import MODEL, ROOT

from transformer.reports import sweep_report
from transformer.runs import run_config
from transformer.runs.launcher import Launcher, Options
from transformer.runs.sweep import plan_of, runs_of
from transformer.system.errors import UserError
from transformer.system.files import write_json

ROWS = [{"name": "a"}, {"name": "b", "model.d_ff": 13}, {"name": "later", "model.d_ff": 17}]


@pytest.fixture
def sweep(tmp_path):
    small = {f"model.{name}": value for name, value in dataclasses.asdict(MODEL).items()}
    plan = plan_of({"rows": ROWS, "seeds": [0, 1]}, "s.py")
    runs = runs_of(plan, str(ROOT / "configs/base.py"), small)
    launcher = Launcher(Options(tmp_path))
    for run, bleus in zip(runs, ([10, 30], [20, 24], [50], []), strict=False):
        workdir = launcher.workdir(run)
        run_config.save(workdir, run.config)
        lines = [
            {"step": 10 * i, "eval/validation/nll": 5.0 - i, "eval/validation/bleu": bleu}
            for i, bleu in enumerate(bleus, start=1)
        ]
        (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_json(launcher.workdir(runs[0]) / "eval/test/scores.json", {"bleu": {"score": 12.0}})
    write_json(launcher.workdir(runs[0]) / "sweep.json", launcher._mark(runs[0]))
    return launcher, runs


def test_mean_and_deviation_over_the_seeds_so_far(sweep):
    rows = sweep_report.rows_of(*sweep)
    head, lines = sweep_report.table(rows)
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [line["row"] for line in found] == ["a", "b", "later"]
    assert [line["done"] for line in found] == ["1 of 2", "0 of 2", "0 of 2"]
    assert [line["model.d_ff"] for line in found] == ["11", "13", ""]
    assert found[0]["best bleu"] == "27 ± 4.2"
    assert [line["best bleu"] for line in found[1:]] == ["50", ""]
    assert found[0]["best perplexity"] == "20.09"  # e^3
    assert found[0]["test bleu"] == "12"
    assert "last nll" not in head
    assert "training.seed" not in head
    # A spreadsheet has a line for each run.
    head, lines = sweep_report.table(rows, form="csv")
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [line["row"] + line["seed"] for line in found] == ["a0", "a1", "b0", "b1"]
    assert [line["best bleu"] for line in found] == ["30", "24", "50", ""]
    assert [line["test bleu"] for line in found] == ["12.0", "", "", ""]
    assert head.index("best nll") < head.index("model.d_ff") < head.index("updates")


def test_what_is_no_mean_of_the_runs(sweep, capsys):
    """Scores of translations by others, settings that seeds do not share, and damaged runs."""
    launcher, runs = sweep
    others = {"bleu": {"score": 90.0}, "split": "test", "hypotheses": "others.de"}
    write_json(launcher.workdir(runs[0]) / "eval/test-of-others.de/scores.json", others)
    path = launcher.workdir(runs[1]) / "config.json"
    config = json.loads(path.read_text())
    config["data"]["data_dir"] = "elsewhere"
    path.write_text(json.dumps(config))
    head, lines = sweep_report.table(sweep_report.rows_of(*sweep))
    found = dict(zip(head, lines[0], strict=True))
    assert found["test bleu"] == "12"
    assert found["data.data_dir"].endswith(", elsewhere")
    (launcher.workdir(runs[0]) / "config.json").write_text("{")
    head, lines = sweep_report.table(sweep_report.rows_of(*sweep))
    found = dict(zip(head, lines[0], strict=True))
    assert (found["row"], found["best bleu"]) == ("a", "24")
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: without a-0: ")
    assert "config.json is damaged" in warning


def evaluate(workdir, folder, bleu, steps, split="test"):
    scores = {"bleu": {"score": bleu}, "split": split, "checkpoint_steps": steps}
    write_json(workdir / "eval" / folder / "scores.json", scores)


def columns_of(sweep):
    (row, *_) = sweep_report.rows_of(*sweep)
    return {name: x for name, x in row.columns.items() if name.startswith(("test", "wmt"))}


def test_an_evaluation_is_named_after_its_folder_without_what_seeds_do_not_share(sweep):
    launcher, runs = sweep
    for run, step, bleu in zip(runs[:2], (80, 90), (30.0, 40.0), strict=True):
        workdir = launcher.workdir(run)
        evaluate(workdir, f"test-average-2-at-{step - 75}", 1.0, [1, step - 75])
        evaluate(workdir, f"test-average-2-at-{step}", 2.0, [1, step])
        evaluate(workdir, f"test-average-5-at-{step}-beam_size=1", bleu, [1, step])
        evaluate(workdir, "test-step-10", 9.0, [10])
        evaluate(workdir, "test-step-20", 8.0, [20])  # the last update
        evaluate(workdir, "wmt14_full", 7.0, [step], split="wmt14/full")
    assert columns_of(sweep) == {
        "test bleu": [12.0, None],
        "test-average-2 bleu": [2.0, 2.0],  # the newest
        "test-average-5-beam_size=1 bleu": [30.0, 40.0],
        "test-last bleu": [8.0, 8.0],
        "test-step-10 bleu": [9.0, 9.0],
        "wmt14_full bleu": [7.0, 7.0],
    }


def test_numbers_that_are_none_are_left_out(sweep, tmp_path):
    launcher, runs = sweep
    for run, bleu, chrf in zip(
        runs, (math.nan, 20.0, math.inf), (math.nan, math.nan, 1.0), strict=False
    ):
        scores = {"bleu": {"score": bleu}, "chrf": {"score": chrf}}
        path = launcher.workdir(run) / "eval/test/scores.json"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(scores))
    rows = sweep_report.rows_of(*sweep)
    _, lines = sweep_report.table(rows, ["test bleu", "test chrf"])
    assert [line[2:] for line in lines] == [["20", "nan"], ["inf", "1"], ["", ""]]


def test_columns_that_are_asked_for(sweep, tmp_path):
    rows = sweep_report.rows_of(*sweep)
    head, lines = sweep_report.table(rows, ["last bleu"])
    assert (head, lines[0]) == (["row", "done", "last bleu"], ["a", "1 of 2", "27 ± 4.2"])
    with pytest.raises(UserError, match=r"no run has the metric 'bleu'; there are: "):
        sweep_report.table(rows, ["bleu"])
    nothing_yet = sweep_report.rows_of(Launcher(Options(tmp_path / "other")), sweep[1])
    assert sweep_report.table(nothing_yet) == (
        ["row", "done"],
        [["a", "0 of 2"], ["b", "0 of 2"], ["later", "0 of 2"]],
    )
