"""Weights & Biases: what is checked at the start, with a module that stands for it; and offline."""

import dataclasses
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from small_configs import PAPER

from transformer.runs import train
from transformer.runs.log import RunLog
from transformer.runs.metric_writers import MetricsWriter
from transformer.runs.tracking import WandbWriter, check_login
from transformer.system.errors import UserError
from transformer.tasks import seq2seq


def raises(error):
    def function(*_, **__):
        raise error

    return function


def logged_to(project):
    training = dataclasses.replace(PAPER.training, wandb=project)
    return dataclasses.replace(PAPER, training=training)


def fake(monkeypatch, *, mode="online", login=None, key=None, init=None):
    """A module wandb. login: of versions that can be told not to ask; key: of others."""

    def asks(key=None):
        pytest.fail("nobody is there to be asked")

    module = SimpleNamespace(
        setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode=mode)),
        login=(lambda prompt=True: asks() if prompt else login()) if login else asks,
        api=SimpleNamespace(api_key=key),
        init=init or raises(RuntimeError("gone")),
        Settings=dict,
    )
    monkeypatch.setitem(sys.modules, "wandb", module)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"login": lambda: False},
            "training.wandb: no API key is known; log in with `wandb login`",
        ),
        ({"key": None}, "training.wandb: no API key is known; log in with `wandb login`"),
        ({"login": raises(OSError("no network"))}, "training.wandb: no network; log in with"),
        ({"mode": "offline"}, None),
        ({"login": lambda: True}, None),
        ({"key": "k" * 40}, None),
    ],
)
def test_a_login_is_looked_for(given, message, monkeypatch):
    fake(monkeypatch, **given)
    if message is None:
        check_login()
    else:
        with pytest.raises(UserError, match=f"^{message}"):
            check_login()


def test_it_is_checked_before_the_data(tmp_path, monkeypatch):
    """And before anything is written."""
    prepare = seq2seq.TASK._replace(prepare=raises(AssertionError("too late")))
    monkeypatch.setattr(seq2seq, "TASK", prepare)
    config = logged_to("toys")
    monkeypatch.setitem(sys.modules, "wandb", None)
    for message in ("this needs the package wandb; run: pip install", "no API key is known"):
        with pytest.raises(UserError, match=message):
            train.train(config, tmp_path / "run", stop=None)
        fake(monkeypatch, login=lambda: False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "run/metrics.jsonl").mkdir(parents=True)
    (tmp_path / "run/config.json").write_text(config.to_json())
    with pytest.raises(UserError, match=r"cannot write .*run/metrics.jsonl: Is a directory"):
        train.train(config, tmp_path / "run", stop=None)


def test_a_log_that_cannot_be_opened_ends_in_its_own_message(tmp_path, monkeypatch):
    def opened(workdir, project=None):
        log = RunLog(workdir, logged_to(project), None, None, 0.0, None)
        try:
            log.open(0, evaluated=False)
        finally:
            log.close()  # as a run does that ends

    fake(monkeypatch, login=lambda: True)
    with pytest.raises(UserError, match=r"^training.wandb: gone; log in"):
        opened(tmp_path, "toys")
    (tmp_path / "b/metrics.jsonl").mkdir(parents=True)
    with pytest.raises(OSError, match=r"metrics.jsonl"):
        opened(tmp_path / "b")
    monkeypatch.setattr(MetricsWriter, "__init__", raises(PermissionError(13, "no", "events")))
    with pytest.raises(PermissionError, match="events"):
        opened(tmp_path / "c")


def test_what_cannot_be_sent_does_not_end_training(tmp_path, monkeypatch, capsys):
    run = SimpleNamespace(define_metric=lambda *_, **__: None)
    run.log = run.finish = raises(BrokenPipeError("its service is gone"))
    fake(monkeypatch, mode="offline", init=lambda **_: run)
    writer = WandbWriter("toys", tmp_path, {})
    writer.write(1, {"train/nll": 3.5})
    writer.close()
    assert capsys.readouterr().err == "warning: Weights & Biases: its service is gone\n"


# --- The package itself -------------------------------------------------------------------

is_installed = pytest.mark.skipif(find_spec("wandb") is None, reason=".[tracking]")


@is_installed
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
