"""Sweeps that fail, are stopped and start again; scripts that only pretend stand for ours."""

import os
import shutil
import signal
import threading
import time

import pytest

from transformer.runs import launcher, run_config
from transformer.runs.launcher import Launcher, Options
from transformer.runs.sweep import plan_of, runs_of

ROOT = launcher.ROOT
# Notes that it was called; works for as long as a file says, and hears SIGTERM.
SCRIPT = """
import os, signal, sys, time
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
while (workdir.parent / "slow").exists():
    if stopped:
        sys.exit(75)
    time.sleep(0.01)
if "record" in flags:
    Path(flags["record"]).parent.mkdir(exist_ok=True)
    Path(flags["record"]).touch()
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
    runs = runs_of(plan, str(ROOT / "configs/base.py"))

    def make(**options):
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


def test_a_recorded_run_is_done_even_without_its_work_directory(sweep):
    own, runs = sweep()
    own.launch(runs[:1])
    own, runs = sweep(results=sweep.out / "results")
    assert not own.is_done(runs[0])  # it is to be recorded
    own.launch(runs[:1])
    shutil.rmtree(sweep.out / "a-0")
    assert own.is_done(runs[0])
    assert sweep.calls() == ["train a-0 ", "evaluate a-0 "] * 2


@pytest.mark.parametrize("mark", ["[]", "{", '{"evaluate": 3}'])
def test_a_damaged_mark_is_none(sweep, mark):
    own, runs = sweep(evaluate="none")
    (sweep.out / "a-0").mkdir()
    (sweep.out / "a-0/sweep.json").write_text(mark)
    assert not own.is_done(runs[0])


def test_an_unexpected_error_is_that_of_one_run(sweep, capfd):
    own, runs = sweep(evaluate="none")
    (sweep.out / "a-0.train.log").mkdir()
    assert own.launch(runs) == ["a-0"]
    said = capfd.readouterr()
    assert "failed   a-0: IsADirectoryError(21, " in said.err
    assert "done     b-0; 2 of 2" in said.out


def test_each_gpu_has_one_run(sweep):
    own, runs = sweep(gpus=["3", "5"], evaluate="none")
    own.launch(runs)
    runs, gpus = zip(*(call.rsplit(" ", 1) for call in sweep.calls()), strict=True)
    assert (sorted(runs), sorted(gpus)) == (["train a-0", "train b-0"], ["3", "5"])


def test_a_signal_goes_on_to_the_runs(sweep, capfd):
    (sweep.out / "slow").touch()
    own, runs = sweep()

    def stop():
        deadline = time.monotonic() + 60
        while not (sweep.out / "calls").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(SystemExit) as stopped:
        own.launch(runs)
    thread.join()
    assert stopped.value.code == 75
    assert sweep.calls() == ["train a-0 "]
    assert capfd.readouterr().err.endswith("stopped; the same command goes on\n")
    (sweep.out / "slow").unlink()
    assert sweep()[0].launch(runs) == []
