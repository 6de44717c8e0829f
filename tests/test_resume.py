"""A run in parts is one run: after signals, sudden death, and on other devices."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import soak
from processes import flags_of_a_job, run_together, slurm_variables, training
from scripts import (
    ROOT,
    Result,
    assert_same_params,
    environment,
    final_state,
    metrics,
    run,
    succeeded,
    toy_flags,
    write_toy,
)

from configs import base
from transformer.data.batches import TrainingBatches
from transformer.data.tokenizers import Tokenizers
from transformer.runs import loop, provenance, train
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.restore import restore
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.preemption import Stopped, StopRequest
from transformer.system.sharding import data_mesh
from transformer.system.startup import STOPPED
from transformer.tasks.seq2seq import Seq2SeqTraining
from transformer.tasks.task import Examples
from transformer.training.schedules import make_schedule


def assert_same_run(a: Path, b: Path) -> None:
    """The same metrics and, by the digests of the last checkpoint, the same bits."""
    assert metrics(a) == metrics(b)
    last = [max(map(int, kept(workdir))) for workdir in (a, b)]
    paths = [x / f"checkpoints/{n}/record/record.json" for x, n in zip((a, b), last)]
    assert paths[0].read_text() == paths[1].read_text()


# --- Resuming -----------------------------------------------------------------------------


def resumable(**changes) -> list[str]:
    """12 updates with dropout, a checkpoint every 3; epochs of 9.6 updates."""
    return toy_flags(
        **{
            "training_steps": 12,
            "training_log_every": 3,
            "training_checkpoint_every": 3,
            "training_max_tokens_per_device": 3 * 31,
            "model_dropout": 0.2,
            "optimizer_warmup_steps": 5,
        }
        | OPTIONS
        | changes
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    write_toy(directory, train=197, validation=41)
    return directory


class StopAt(StopRequest):
    """A request that comes just before the loop asks for the `number`th time."""

    def __init__(self, number: int | None):
        self.asked, self.number = 0, number

    def wait_for_steps(self, mesh) -> None:
        pass

    def seen(self) -> bool:
        self.asked += 1
        return self.asked == self.number


def experiment_of(text: Path, **changes) -> Config:
    """9 updates: a checkpoint each 4, full validation each 8, a line of the log each 3."""
    config = base.get_config().to_dict()
    fields = {
        "training_steps": 9,
        "training_checkpoint_every": 4,
        "training_full_validation_every": 8,
        "training_log_every": 3,
        "training_max_tokens_per_device": 3 * 31,
        "model_dropout": 0.2,
        "optimizer_warmup_steps": 5,
        "data_data_dir": str(text / "data"),
    }
    for flag in toy_flags(**{**fields, **changes})[1:]:
        name, _, value = flag.removeprefix("--config.").partition("=")
        section, _, field = name.partition(".")
        kind = type(config[section][field])
        config[section][field] = value if kind is type(None) else kind(value)
    for name in ("train", "validation"):
        config["data"][f"{name}_source"] = str(text / f"{name}.en")
        config["data"][f"{name}_target"] = str(text / f"{name}.de")
    return Config.from_dict(config)


def share_programs(config: Config, monkeypatch, prepared: dict[Callable, Any]) -> None:
    """Runs with the same `prepared` have the data and programs that the first of them prepares."""

    def first_of(function):
        def first(*arguments):
            if function not in prepared:
                prepared[function] = function(*arguments)
            return prepared[function]

        return first

    vars(config)["kind"] = config.kind._replace(prepare=first_of(config.kind.prepare))
    monkeypatch.setattr(train, "prepare_programs", first_of(train.prepare_programs))


@pytest.fixture(scope="module")
def prepared() -> dict[Callable, Any]:
    """What runs of the configs of `experiment_of` without full validations share."""
    return {}


OPTIONS = {"model_positions": "t5", "model_norm": "sandwich", "model_feed_forward": "swiglu"}
TWELVE = OPTIONS | {
    "training_steps": 12,
    "training_checkpoint_every": 3,
    "training_full_validation_every": 0,
}


@pytest.fixture(scope="module")
def uninterrupted(text, compiled_once, prepared) -> Path:
    """The run of `resumable`."""
    config = experiment_of(text, **TWELVE)
    with pytest.MonkeyPatch.context() as patch:
        share_programs(config, patch, prepared)
        start = provenance.conditions() | {"config_file": "configs/base.py", "overrides": {}}
        train.train(config, text / "whole", StopAt(None), start=start)
    return text / "whole"


def kept(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


# train.py, which nobody listens to (as in `train.py 2>&1 | tee log` and Ctrl-C, which ends tee
# first), and which a signal reaches before an update.
SIGNALLED = """
import os, runpy, sys
from transformer.runs.loop import Updates

script, at, sent = sys.argv[1], *map(int, sys.argv[2:4])
del sys.argv[1:4]
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
os.dup2(writer, 2)

def run(self, train, step, run=Updates.run):
    if step == at:
        os.kill(os.getpid(), sent)
    return run(self, train, step)

Updates.run = run
runpy.run_path(script, run_name="__main__")
"""


def test_a_run_that_is_stopped_and_killed_is_one_run(
    text, uninterrupted, prepared, capsys, monkeypatch
):
    workdir = text / "parts"
    (text / "signalled.py").write_text(SIGNALLED)

    def code_after(step: int, sent: int) -> int:
        words = [str(ROOT / "train.py"), str(step), str(int(sent)), *resumable()]
        return run(str(text / "signalled.py"), *words, "--workdir=parts", cwd=text).code

    assert code_after(4, signal.SIGINT) == STOPPED == 75
    assert kept(workdir) == ["3", "5"]
    assert not (workdir / "lock").exists()
    assert code_after(10, signal.SIGKILL) == -signal.SIGKILL
    # What it may have written that it could not save any more.
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "train/loss": 99.0}\n{"step": 12, "train/lo')
    config = experiment_of(text, **TWELVE)
    share_programs(config, monkeypatch, prepared)
    train.train(config, workdir, StopAt(None))
    assert re.search("at step [69] of 12", capsys.readouterr().out)  # 9 may be half written
    assert_same_run(workdir, uninterrupted)
    assert metrics(uninterrupted)[-1]["step"] == 12


def by_two_processes(directory: Path, flags: list[str]) -> list[Result]:
    """The two of a Slurm step, as it starts them; they have a half each of every parameter."""
    command = [ROOT / "train.py", *flags, "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    results = run_together(2 * [command], directory, slurm_variables(2))
    return list(map(succeeded, results))


@pytest.mark.slow
def test_a_run_that_begins_with_the_parameters_of_another(uninterrupted):
    directory = uninterrupted.parent
    shutil.copytree(uninterrupted, directory / "initial")
    (directory / "other").mkdir()
    write_toy(directory / "other", train=53)
    flags = resumable(training_init_from="initial", training_steps=3, training_seed=5)
    flags = [flag.replace("=train.", "=other/train.") for flag in flags]
    flags += ["--config.optimizer.schedule=constant", "--config.optimizer.peak_learning_rate=0"]
    first, _ = by_two_processes(directory, [*flags, "--workdir=begun"])
    best = restore(directory / "initial")
    assert f"the best of initial, step(s) {best.chosen.steps[0]}\n".encode() in first.out
    assert Tokenizers.load(directory / "begun").sha256 == best.task.tokenizers.sha256
    assert_same_params(restore(directory / "begun", "last", None), best)
    origin = provenance.origin(directory / "begun")
    assert origin["checkpoint_steps"] == best.chosen.steps
    assert origin["config"]["training.steps"] == 12
    assert origin["starts"][0]["step"] == 0

    # It began once: the other may be gone, even if the run is killed before its first checkpoint.
    (directory / "initial").rename(directory / "gone")
    shutil.copytree(
        directory / "begun", directory / "killed_early", ignore=lambda folder, _: (
            ["checkpoints", "metrics.jsonl"] if Path(folder).name == "begun" else []
        ),
    )  # fmt: skip
    succeeded(run("train.py", *flags, "--workdir=killed_early", cwd=directory))
    assert_close_run(directory / "killed_early", directory / "begun")
    failed = run("train.py", *flags, "--workdir=late", cwd=directory)
    assert failed.code == 2
    assert "training.init_from: initial is not a work directory" in failed.err
    assert not (directory / "late/config.json").exists()


# --- Told to stop -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory, compiled_once) -> Path:
    """The uninterrupted run of `experiment_of`."""
    workdir = tmp_path_factory.mktemp("whole")
    train.train(experiment_of(text), workdir, StopAt(None))
    return workdir


@pytest.mark.slow
def test_an_average_and_a_rate_that_falls_on_a_plateau(text, tmp_path, monkeypatch, compiled_once):
    """They go on in parts as in one."""

    def validate(self, state, full, check):
        check()
        return {"nll": 5.0}, Examples()

    monkeypatch.setattr(Seq2SeqTraining, "validate", validate)
    changes = {
        "training_log_every": 1,
        "training_ema": 0.9,
        "optimizer_name": "optax.lion",
        "optimizer_plateau_patience": 1,
        "optimizer_plateau_factor": 0.25,
    }
    config, whole = experiment_of(text, **changes), tmp_path / "whole"
    train.train(config, whole, StopAt(None))
    rates = {x["step"]: x.get("train/learning_rate") for x in metrics(whole) if "train/loss" in x}
    schedule = make_schedule(config.optimizer, config.model.d_model)
    expected = {step: float(schedule(step)) * (0.25 if step == 9 else 1) for step in range(1, 10)}
    assert rates == pytest.approx(expected, rel=1e-6)
    # Stopped between checkpoints, ended after a measurement that lowers the rate, and gone on with.
    ended, parts = experiment_of(text, **changes, training_steps=8), tmp_path / "parts"
    with pytest.raises(Stopped):
        train.train(ended, parts, StopAt(7))
    for part in (ended, config):
        train.train(part, parts, StopAt(None))
    assert_same_run(parts, whole)

    last, average = (restore(whole, name) for name in ("last", "ema"))
    assert average.chosen == last.chosen._replace(checkpoint="ema")
    gaps = jax.tree.map(lambda x, y: float(abs(x - y).max()), last.params, average.params)
    assert min(jax.tree.leaves(gaps)) > 0


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on_from_there(text, whole, tmp_path, capsys, monkeypatch):
    """Between checkpoints, at one, and in the validation of either kind. Nothing compiles again.

    A warning of ours is an error here, so the tests of rollbacks below show it of these.
    """
    config, at = experiment_of(text), 0
    share_programs(config, monkeypatch, {})
    for number, what, step in (
        (3, "after", 3),
        (1, "after", 4),
        (1, "in the validation of", 4),
        (21, "in the validation of", 8),
    ):
        with pytest.raises(Stopped) as stopped:
            train.train(config, tmp_path, StopAt(number))
        assert stopped.value.code == STOPPED == 75
        out, err = capsys.readouterr()
        assert f"stopped {what} step {step}\n" in err
        assert f"at step {at} of 9" in out
        assert "; 0 programs compiled" in out
        assert max(map(int, kept(tmp_path))) == step
        at = step
    train.train(config, tmp_path, StopAt(None))
    assert_same_run(tmp_path, whole)
    assert kept(tmp_path) == kept(whole) == ["4", "8", "9"]


@pytest.mark.slow
def test_a_run_may_end_where_it_was_stopped(text, tmp_path, monkeypatch, compiled_once):
    """Its files may have moved by then, but must be what they were."""
    workdir, fields = tmp_path / "run", {"training_full_validation_every": 0}
    with pytest.raises(Stopped):
        train.train(experiment_of(text, **fields), workdir, StopAt(3))
    assert kept(workdir) == ["3"]  # before the first checkpoint that is due
    (tmp_path / "text").mkdir()
    for path in text.glob("*.??"):
        shutil.copy(path, tmp_path / "text")
    moved = experiment_of(tmp_path / "text", training_steps=3, **fields)

    def data_id() -> str:
        return moved.kind.prepare(moved, data_mesh(), workdir, None).data_id

    before = data_id()
    train.train(moved, workdir, StopAt(None))
    checkpoints = Checkpoints(
        workdir, keep_last=5, best_metric="nll", direction="lower", read_only=True
    )
    with contextlib.closing(checkpoints):
        assert checkpoints.scheduled_steps() == [3]  # so that it can be averaged
    # Another packing, or another stream of NumPy's, would give other batches than before.
    with monkeypatch.context() as patch:
        patch.setattr(TrainingBatches, "fingerprint", "another plan")
        assert data_id() != before
    path = tmp_path / "text/train.de"
    path.write_text(path.read_text().replace("Eno", "On"))
    with pytest.raises(UserError, match="training or validation data, or the order of the batches"):
        train.train(moved, workdir, StopAt(None))


# --- Divergence ---------------------------------------------------------------------------


def poison(monkeypatch, *bad: int, labels=lambda labels: labels + 10_000) -> None:
    """Alters the labels of some batches: beyond the vocabulary, the loss is not finite."""

    def poisoned(self, number: int):
        batch, num_tokens = batch_of(self, number)
        if number in bad:
            altered = labels(np.asarray(batch.tgt_out_BT))
            altered = jax.device_put(altered, batch.tgt_out_BT.sharding)
            batch = batch._replace(tgt_out_BT=altered)
        return batch, num_tokens

    batch_of = Seq2SeqTraining.batch
    monkeypatch.setattr(Seq2SeqTraining, "batch", poisoned)


def skipped(workdir: Path) -> list[tuple[int, float, float]]:
    lines = [line for line in metrics(workdir) if "train/skipped_updates" in line]
    names = "step", "train/skipped_updates", "train/skipped_batches"
    return [tuple(line[name] for name in names) for line in lines]


@pytest.mark.slow
def test_a_bad_batch_is_skipped_and_after_many_in_a_row_it_goes_back(
    text, tmp_path, capsys, monkeypatch, compiled_once
):
    poison(monkeypatch, 2, 5, 6)
    changes = {"training_log_every": 1, "training_rollback_after": 2}
    config = experiment_of(text, **OPTIONS, **changes, training_full_validation_every=0)
    share_programs(config, monkeypatch, {})
    train.train(config, tmp_path / "a", StopAt(None))
    err = capsys.readouterr().err
    assert re.search(r"warning: update 3 on batch 2: loss nan, .*: skipped \(1 in a row\)", err)
    assert "from step 7 back to step 4, and on with batch 7 (rollback 1 of 3)" in err
    assert skipped(tmp_path / "a") == [(s, s > 2, 0 if s < 5 else 3) for s in range(1, 10)]
    losses = [line["train/loss"] for line in metrics(tmp_path / "a") if "train/loss" in line]
    assert [i for i, loss in enumerate(losses) if loss is None] == [2]

    # At a checkpoint without scores, as after a full disk, it is evaluated again. Then it is
    # stopped after the rollback, before a checkpoint.
    def fail_once(*_) -> None:
        monkeypatch.setattr(Checkpoints, "record_scores", record_scores)

    record_scores = Checkpoints.record_scores
    monkeypatch.setattr(Checkpoints, "record_scores", fail_once)
    with pytest.raises(Stopped):
        train.train(config, tmp_path / "b", StopAt(25))
    assert "stopped after step 6" in capsys.readouterr().err
    train.train(config, tmp_path / "b", StopAt(None))
    assert_same_run(tmp_path / "b", tmp_path / "a")


@pytest.mark.slow
def test_without_a_checkpoint_it_goes_back_to_what_it_began_with(
    text, whole, tmp_path, capsys, monkeypatch
):
    shutil.copytree(whole, tmp_path / "a")
    changes = {"training_rollback_after": 2, "training_init_from": str(tmp_path / "a")}
    begun = experiment_of(text, **changes, training_full_validation_every=0)
    states = []

    def recorded(self, **how):
        if states:
            (tmp_path / "a").rename(tmp_path / "gone")
        at = restored(self, **how)
        states.append(jax.device_get(at.train))
        return at

    restored = loop.Loop.restore
    monkeypatch.setattr(loop.Loop, "restore", recorded)
    poison(monkeypatch, 1, 2)
    train.train(begun, tmp_path / "b", StopAt(None))
    assert "back to step 0, and on with batch 3" in capsys.readouterr().err
    expected = restore(tmp_path / "gone").params
    assert len(states) == 2
    for state in states:
        assert state.step == 0
        jax.tree.map(np.testing.assert_array_equal, state.params, jax.device_get(expected))


def test_after_a_few_rollbacks_it_stops_with_a_report(
    text, tmp_path, uninterrupted, prepared, monkeypatch
):
    poison(monkeypatch, *range(5, 99))
    changes = {"training_rollback_after": 2, "training_max_rollbacks": 2}
    config = experiment_of(text, **changes, training_full_validation_every=0)
    share_programs(config, monkeypatch, prepared)
    with pytest.raises(UserError, match=r"after 2 rollbacks .* has the batches") as error:
        train.train(config, tmp_path, StopAt(None))
    assert str(tmp_path / "divergence.json") in str(error.value)
    report = json.loads((tmp_path / "divergence.json").read_text())
    updates = report["updates"]
    assert [update["batch"] for update in updates] == [9, 10]
    assert [update["step"] for update in updates] == [4, 5]
    assert all(update["skipped"] and update["loss"] == "nan" for update in updates)
    lines = [(text / f"train.{x}").read_text().splitlines() for x in ("en", "de")]
    for update in updates:
        assert len(update["examples"]) > 5
        for pair in update["examples"]:
            assert (pair["source"], pair["target"]) == tuple(x[pair["pair"]] for x in lines)
    norms = report["norms_by_layer"]
    parts = {"encoder_layers/0", "encoder_norm", "decoder_layers/0", "decoder_norm"}
    assert set(norms) == parts | {"target_embedding"}
    assert min(norms.values()) > 0.1
    assert kept(tmp_path) == ["4"]  # nothing of the bad part was saved


# --- Other machines -----------------------------------------------------------------------


def assert_close_run(a: Path, b: Path) -> None:
    for x, y in zip(metrics(a), metrics(b), strict=True):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_allclose(x[name], y[name], rtol=2e-3, err_msg=name)
    for x, y in zip(*map(jax.tree.leaves, (final_state(a).params, final_state(b).params))):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-3)


@pytest.mark.slow
def test_from_one_process_to_two_and_back(uninterrupted):
    workdir = shutil.copytree(uninterrupted, uninterrupted.parent / "processes")
    for step in (9, 12):
        shutil.rmtree(workdir / "checkpoints" / str(step))
    flags = [*resumable(), "--workdir=processes"]
    first, second = by_two_processes(workdir.parent, [*flags, "--config.training.steps=9"])
    assert b"on 4 cpu device(s)" in first.out
    assert b"cpu device(s)" not in second.out
    said = succeeded(run("train.py", *flags, cwd=workdir.parent)).out
    assert b"at step 9 of 12" in said
    assert_close_run(workdir, uninterrupted)
    assert metrics(workdir) != metrics(uninterrupted)  # so the devices did make a difference


@pytest.mark.slow
@pytest.mark.parametrize("until", ["config.json", "metrics.jsonl"])
def test_a_signal_to_one_process_stops_all(until, uninterrupted):
    """During the start there is nothing to save; later, all stop at the same step."""
    workdir = uninterrupted.parent / f"stopped-{until}"
    flags = resumable(training_steps=100_000, training_checkpoint_every=1000)
    with training(flags, workdir, *flags_of_a_job(2), until=until, devices=2) as processes:
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(timeout=60) for process in processes] == [STOPPED, STOPPED]
    assert len(list(workdir.glob("checkpoints/*"))) == (until == "metrics.jsonl")


# --- For longer ---------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_again_and_again():
    command = [sys.executable, soak.__file__, "--kills=3", "--steps=100", "--variant=plain"]
    variables = os.environ | environment()
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
