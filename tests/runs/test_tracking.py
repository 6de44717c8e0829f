"""Weights & Biases, offline: what it keeps on disk to be sent later."""

import time

import pytest

from transformer.runs.tracking import WandbWriter
from transformer.system.errors import UserError

wandb = pytest.importorskip("wandb", reason="requirements-tracking.txt")


@pytest.mark.filterwarnings("ignore")  # of its own
def test_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    writer = WandbWriter("toys", tmp_path / "a run", {"model.d_model": 7, "training.seed": None})
    writer.write(2, {"train/nll": 3.5})
    writer.write(1, {"train/nll": 4.5})  # after a rollback
    assert writer._run.config["model.d_model"] == 7
    assert writer._run.project == "toys"
    assert writer._run.name == "a run"
    writer.close()
    (file,) = tmp_path.rglob("*.wandb")
    end = time.monotonic() + 60  # another process writes it
    while b"train/nll" not in (content := file.read_bytes()) and time.monotonic() < end:
        time.sleep(0.1)
    assert b"train/nll" in content
    assert b"4.5" in content
    assert b"model.d_model" in content


@pytest.mark.filterwarnings("ignore")
def test_without_an_account(tmp_path, monkeypatch):
    def refuse(**_):
        raise wandb.Error("no API key")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="no API key; log in with `wandb login`, or set WANDB_MODE"):
        WandbWriter("toys", tmp_path, {})
