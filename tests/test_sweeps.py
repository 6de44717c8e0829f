"""sweep.py as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from scripts import ROOT, assert_refused, environment, metrics, run, succeeded, toy_flags, write_toy

FILE = """
from configs import base
get_config = base.get_config
def get_sweep():
    return {"grid": {"model.num_heads": [1, 3]}, "seeds": [0, 1], "evaluate": "--split=validation"}
"""
FIELDS = toy_flags(data_test_source="test.en", data_test_target="test.de")[1:]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    write_toy(directory, train=97, validation=5, test=7)
    (directory / "toy.py").write_text(FILE)
    return directory


def test_the_commands_of_all_runs_and_of_a_shard(directory):
    def commands(*flags):
        flags = ["--config=toy.py", "--dry_run", *flags]
        return succeeded(run("sweep.py", *flags, cwd=directory)).out.decode().splitlines()

    every = commands(FIELDS[-1])
    assert f"train.py --config=toy.py {FIELDS[-1]} " in every[0]  # rows come later
    own = "--config.training.seed=0 --config.model.num_heads=1"
    assert every[0].endswith(f" {own} --workdir=runs/toy/num_heads=1-0")
    shards = [commands(FIELDS[-1], f"--shard={i}/3") for i in range(3)]
    assert [len(shard) for shard in shards] == [2, 1, 1]
    assert sorted(line for shard in shards for line in shard) == sorted(every)
    (only,) = commands("--out=~/x", "--only=*3-*", "--shard=1/2")
    assert f" --workdir={os.path.expanduser('~/x')}/num_heads=3-1" in only


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ([], "--config is missing"),
        (["--config=toy.py", "--only=nobody"], "--only=nobody names no run"),
        (["--config=toy.py", "--seeds=1,x"], "--seeds=1,x must be whole numbers"),
        (["--config=toy.py", "--config.training.seed=7"], "is given; give --seeds=7"),
        (["--config=toy.py", "--evaluate=--split='test"], "No closing quotation"),
        (["--config=toy.py", "--gpus=0", "--together=2"], "--gpus and --together"),
        (["--config=toy.py", "--gpus=0,1,0"], "--gpus=0,1,0 names a GPU twice"),
        (["--config=toy.py", "--evaluate=--splt=test"], "Unknown command line flag 'splt'"),
        (["--config=toy.py", "--shard=8/8"], "--shard=8/8 must be N/M with N < M"),
        (["--config=toy.py", "--shard=1"], "--shard=1 must be N/M with N < M"),
        (["--config=toy.py", "--table=md", "--metric=x"], "no run has the metric 'x'"),
    ],
)
def test_refused(directory, flags, part):
    assert_refused(run("sweep.py", *flags, cwd=directory), part)


def test_rows_that_cannot_be_run(directory):
    flags = ["--config=toy.py", *FIELDS, "--only=num_heads=3", "--evaluate=none"]
    result = run("sweep.py", *flags, cwd=directory)
    assert result.code == 1
    assert "failed   num_heads=3-1: model.d_model = 14 is not divisible" in result.err
    assert result.out.decode().splitlines()[-1].split()[:4] == ["num_heads=3", "0", "of", "2"]


def sweep(directory, *flags):
    command = [sys.executable, ROOT / "sweep.py", flags[0], *FIELDS, *flags[1:]]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=os.environ | environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_and_is_recorded(directory):
    """Stopped in the middle of a run."""
    flags = [f"--config={ROOT / 'configs/base.py'}", "--seeds=1", "--out=runs/s"]
    flags += ["--config.training.steps=12", "--evaluate=--split=test --average_last=1"]
    flags += ["--results=results"]
    with sweep(directory, *flags) as process:
        wait_for(directory / "runs/s/base-1/checkpoints/2", process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 75, err
    with sweep(directory, *flags) as process:
        said, err = process.communicate()
    assert process.returncode == 0, err
    starts = (directory / "runs/s/base-1/starts.jsonl").read_text().splitlines()
    assert json.loads(starts[-1])["step"] > 0
    steps = [line["step"] for line in metrics(directory / "runs/s/base-1")]
    assert steps == sorted(steps)
    assert max(steps) == 12
    result = json.loads((directory / "results/base-1.json").read_text())
    assert (result["seed"], result["config_file"]) == (1, "configs/base.py")
    assert said.splitlines()[-1].split()[:4] == ["base", "1", "of", "1"]
