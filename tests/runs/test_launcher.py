"""Sweeps that fail, are stopped and start again; scripts that only pretend stand for ours."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from configs import base
from transformer.runs import launcher, run_config
from transformer.runs.launcher import Launcher, Options
from transformer.runs.sweep import plan_of, runs_of
from transformer.system.locks import lock_workdir

# Notes that it was called; works for as long as a file says, and hears SIGTERM.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:])
workdir = Path(flags["workdir"])
workdir.mkdir(parents=True, exist_ok=True)
name = sys.argv[1]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
with (workdir.parent / "calls").open("a") as file:
    names = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"
    place = " ".join(os.environ[name] for name in names if name in os.environ)
    file.write(f"{name} {workdir.name} {place}\\n")
if name == "train" and (workdir.parent / "fail").exists() and workdir.name.startswith("b"):
    sys.exit("it broke")
while (workdir.parent / f"slow-{name}").exists():
    if stopped:
        sys.exit(75)
    time.sleep(0.01)
if name == "evaluate" and "export" not in flags:
    for folder, steps in (("test-beam_size=1", [1, 2]), ("validation", [3])):
        (workdir / "eval" / folder).mkdir(parents=True, exist_ok=True)
        scores = workdir / "eval" / folder / "scores.json"
        scores.with_suffix(".tmp").write_text(json.dumps({"checkpoint_steps": steps}))
        scores.with_suffix(".tmp").replace(scores)
if "record" in flags:
    Path(flags["record"]).parent.mkdir(exist_ok=True)
    Path(flags["record"]).write_text('{"checkpoint": "average", "checkpoint_steps": [1, 2]}')
if "export" in flags:
    (workdir.parent / "exported").write_text(" ".join(sys.argv[2:]))
    Path(flags["export"]).mkdir(parents=True)
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer/__main__.py").write_text(SCRIPT)
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "out"
    out.mkdir()
    plan = plan_of({"rows": [{"name": "a"}, {"name": "b", "model.d_ff": 7}]}, "s.py")

    def make(**options):
        runs = runs_of(plan, "c.py", lambda path: base.get_config().to_dict(), "c")
        return Launcher(Options(out, **options)), runs

    make.out = out
    make.calls = lambda: (out / "calls").read_text().splitlines()
    return make


def test_one_failed_run_does_not_end_the_others_and_a_start_again_goes_on(sweep, capfd):
    own, runs = sweep(flags=["--config.model.dtype=bfloat16"])
    (sweep.out / "fail").touch()
    assert own.launch(list(reversed(runs))) == ["b-0"]
    assert "it broke" in capfd.readouterr().err
    assert sweep.calls() == ["train b-0 ", "train a-0 ", "evaluate a-0 "]
    assert [own.is_done(run) for run in runs] == [True, False]
    (sweep.out / "fail").unlink()
    assert own.launch(runs) == []
    assert sweep.calls()[3:] == ["train b-0 ", "evaluate b-0 "]
    assert own.launch(runs) == []
    assert len(sweep.calls()) == 5


def test_each_of_several_runs_has_its_share_of_a_gpu(sweep, monkeypatch):
    own, runs = sweep(evaluate="none", together=2)
    own.launch(runs[:1])
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2")  # JAX refuses both names at once
    own, runs = sweep(evaluate="none", together=2)
    own.launch(runs[1:])
    assert sweep.calls() == ["train a-0 false 0.4500", "train b-0 false"]


def test_a_run_that_is_to_be_evaluated_otherwise_is_not_done(sweep):
    own, runs = sweep(evaluate="none")
    own.launch(runs)
    assert sweep.calls() == ["train a-0 ", "train b-0 "]
    other, _ = sweep(evaluate="--split=validation")
    assert not other.is_done(runs[0])


def test_a_run_stays_done_when_its_data_move(sweep):
    own, runs = sweep(evaluate="none")
    own.launch(runs[:1])

    def with_fields(**values):
        values = {name.replace("_", ".", 1): value for name, value in values.items()}
        return runs[0]._replace(config=run_config.with_fields(runs[0].config, values))

    assert own.is_done(with_fields(data_raw_dir="elsewhere", data_data_dir="there"))
    assert not own.is_done(with_fields(training_steps=7))


def test_the_mark_says_which_evaluations_are_the_sweeps_own(sweep):
    own, runs = sweep()
    for folder in ("test", "validation"):  # made before; the latter is made again
        path = sweep.out / "a-0/eval" / folder / "scores.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"checkpoint_steps": [3]}')
    own.launch(runs[:1])
    assert own.evaluations(runs[0]) == ["test-beam_size=1", "validation"]
    assert own.evaluations(runs[1]) == []
    (sweep.out / "a-0/sweep.json").write_text('{"evaluations": 3}')
    assert own.evaluations(runs[0]) == []
    assert not own.is_done(runs[0])


def test_of_a_recorded_run_the_chosen_checkpoint_counts(sweep):
    own, runs = sweep(results=sweep.out / "results")
    own.launch(runs[:1])
    assert own.evaluations(runs[0]) == ["test-beam_size=1"]
    exporting, _ = sweep(results=sweep.out / "results", export=sweep.out / "models")
    exporting.launch(runs[:1])  # evaluates nothing
    assert own.evaluations(runs[0]) == ["test-beam_size=1"]


def test_results_and_exports(sweep):
    results, export = sweep.out / "results", sweep.out / "models"
    own, runs = sweep(results=results, export=export)
    own.launch(runs[:1])
    assert (results / "a-0.json").exists()
    assert "--checkpoint=average --average_last=2" in (sweep.out / "exported").read_text()
    assert own.is_done(runs[0])
    shutil.rmtree(sweep.out / "a-0")  # the result stays
    assert own.is_done(runs[0])


def test_an_export_of_what_is_only_trained(sweep):
    options = {"results": sweep.out / "results", "export": sweep.out / "models"}
    own, runs = sweep(evaluate="none", **options)
    assert own.launch(runs[:1]) == []
    assert "--checkpoint" not in (sweep.out / "exported").read_text()
    assert own.is_done(runs[0])


def test_an_unexpected_error_is_that_of_one_run(sweep, capfd):
    own, runs = sweep(evaluate="none")
    (sweep.out / "a-0.train.log").mkdir()
    assert own.launch(runs) == ["a-0"]
    said = capfd.readouterr()
    assert "failed   a-0: IsADirectoryError: " in said.err
    assert "done     b-0; 2 of 2" in said.out


def test_what_was_evaluated_is_exported(sweep):
    own, (run, _) = sweep(evaluate="--checkpoint average --split=test -average_last=2")
    assert own._tested(run) == ["--checkpoint=average", "-average_last=2"]


def test_each_gpu_has_one_run(sweep):
    own, runs = sweep(gpus=["3", "5"], evaluate="none")
    own.launch(runs)
    runs, gpus = zip(*(call.rsplit(" ", 1) for call in sweep.calls()), strict=True)
    assert (sorted(runs), sorted(gpus)) == (["train a-0", "train b-0"], ["3", "5"])


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_evaluation(sweep):
    wait_for(sweep.out / "calls")
    deadline = time.monotonic() + 60
    while "evaluate a-0 " not in sweep.calls():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_goes_on_to_the_runs(sweep, capfd):
    (sweep.out / "slow-train").touch()
    own, runs = sweep()

    def stop():
        wait_for(sweep.out / "calls")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(SystemExit) as stopped:
        own.launch(runs)
    thread.join()
    assert stopped.value.code == 75
    assert sweep.calls() == ["train a-0 "]
    assert capfd.readouterr().err.endswith("stopped; the same command goes on\n")
    (sweep.out / "slow-train").unlink()
    assert sweep()[0].launch(runs) == []


def test_waits_for_a_run_that_outlived_its_sweep(sweep, capfd):
    own, runs = sweep(evaluate="none")
    workdir = sweep.out / "a-0"
    hold = f"""
import sys, time
from pathlib import Path
from transformer.system.locks import lock_workdir
with lock_workdir(Path({str(workdir)!r})):
    time.sleep(1.5)
"""
    with subprocess.Popen([sys.executable, "-c", hold], env=os.environ | {"PYTHONPATH": "."}):
        wait_for(workdir / "lock")
        assert own.launch(runs[:1]) == []
    assert "waiting  a-0" in capfd.readouterr().err
    with lock_workdir(workdir):
        assert own.is_done(runs[0])


def test_waits_for_an_evaluation_that_outlived_its_sweep(sweep, capfd):
    (sweep.out / "slow-evaluate").touch()
    code = f"""
from pathlib import Path
from configs import base
from transformer.runs import launcher
from transformer.runs.sweep import plan_of, runs_of
launcher.ROOT = Path({str(launcher.ROOT)!r})
plan = plan_of({{"rows": [{{"name": "a"}}]}}, "s.py")
runs = runs_of(plan, "c.py", lambda path: base.get_config().to_dict(), "c")
launcher.Launcher(launcher.Options(Path({str(sweep.out)!r}))).launch(runs)
"""
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": "."}) as it:
        wait_for_evaluation(sweep)
        it.kill()
    own, runs = sweep()
    threading.Timer(1.5, (sweep.out / "slow-evaluate").unlink).start()
    assert own.launch(runs[:1]) == []
    assert "waiting  a-0" in capfd.readouterr().err
    assert sweep.calls() == ["train a-0 ", "evaluate a-0 "] * 2


def test_two_starts_at_once_evaluate_a_run_once(sweep, capfd):
    (sweep.out / "slow-evaluate").touch()
    own, runs = sweep()
    first = threading.Thread(target=own._complete, args=runs[:1])
    first.start()
    wait_for_evaluation(sweep)
    threading.Timer(1.5, (sweep.out / "slow-evaluate").unlink).start()
    assert sweep()[0].launch(runs[:1]) == []
    first.join()
    assert sweep.calls() == ["train a-0 ", "evaluate a-0 "]
    said = capfd.readouterr()
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert said.err == f"waiting  a-0: {holder}, or its child, works on it\n"
    assert said.out.startswith("is done  a-0; 1 of 1")
    assert not list(sweep.out.glob("*.lock"))
