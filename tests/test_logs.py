import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from transformer import logs
from transformer.errors import UserError
from transformer.logs import MetricsWriter, Progress, read_metrics


def read_events(workdir: Path) -> list[list[Event]]:
    """The events of each file, oldest file first, after the one with the file's version."""
    files = []
    for path in sorted(workdir.glob("events.out.tfevents.*")):
        data, events, start = path.read_bytes(), [], 0
        while start < len(data):  # length, its checksum, event, its checksum
            (length,) = struct.unpack_from("<Q", data, start)
            events.append(Event.FromString(data[start + 12 : start + 12 + length]))
            start += 16 + length
        assert events[0].file_version == "brain.Event:2"
        files.append(events[1:])
    return files


def scalars(event: Event) -> tuple[int, dict[str, float]]:
    return event.step, {value.tag: value.simple_value for value in event.summary.value}


def test_one_line_a_call(tmp_path):
    with MetricsWriter(tmp_path / "new" / "run", first_step=0) as writer:
        writer.write(100, {"train/nll": 3, "train/loss": np.float32(3.5)})
        writer.write(100, {"eval/validation/bleu": 27.25})
    assert (tmp_path / "new" / "run" / "metrics.jsonl").read_text() == (
        '{"step": 100, "train/loss": 3.5, "train/nll": 3.0}\n'
        '{"step": 100, "eval/validation/bleu": 27.25}\n'
    )


def test_tensorboard_gets_the_same(tmp_path):
    with MetricsWriter(tmp_path, first_step=0) as writer:
        writer.write(100, {"train/nll": 3.0, "train/loss": 3.5})
        writer.write(200, {"train/loss": math.nan})
    ((start, first, second),) = read_events(tmp_path)
    assert (start.step, start.session_log.status) == (0, SessionLog.START)
    assert scalars(first) == (100, {"train/loss": 3.5, "train/nll": 3.0})
    assert scalars(second) == (200, {"train/loss": pytest.approx(math.nan, nan_ok=True)})
    assert 0 < first.wall_time <= second.wall_time


def test_not_finite_is_null_and_the_run_goes_on(tmp_path):
    with MetricsWriter(tmp_path, first_step=0) as writer:
        writer.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e-7})
        writer.write(2, {"a": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "a": null, "b": null, "c": null, "d": 1e-07}\n{"step": 2, "a": 1.0}\n'
    )
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["b"] is None


def test_numpy_numbers_and_step_first(tmp_path):
    with MetricsWriter(tmp_path, first_step=0) as writer:
        writer.write(np.int64(7), {"train/loss": np.float32(0.5), "eval/a/bleu": 30})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(line).items()) == [
        ("step", 7),
        ("eval/a/bleu", 30.0),
        ("train/loss", 0.5),
    ]


def test_step_is_no_metric(tmp_path):
    with (
        MetricsWriter(tmp_path, first_step=0) as writer,
        pytest.raises(ValueError, match="metric"),
    ):
        writer.write(1, {"step": 2.0})


def write_steps(workdir: Path, first_step: int, steps: range) -> None:
    with MetricsWriter(workdir, first_step=first_step) as writer:
        for step in steps:
            writer.write(step, {"train/loss": 1 / step, "train/nll": math.nan})
            if step % 2 == 0:
                writer.write(step, {"eval/validation/nll": 0.1 * step})


@pytest.mark.parametrize("torn", ["", '{"step": 8, "train/lo', '{"step": 8}', "\0\0"])
@pytest.mark.parametrize("checkpoint", [0, 4])
def test_resumed_file_is_that_of_an_uninterrupted_run(tmp_path, torn, checkpoint):
    write_steps(tmp_path / "whole", 0, range(1, 12))
    write_steps(tmp_path / "resumed", 0, range(1, 8))
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write(torn)
    write_steps(tmp_path / "resumed", checkpoint, range(checkpoint + 1, 12))

    whole = (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert len(whole.splitlines()) == 16
    assert (tmp_path / "resumed" / "metrics.jsonl").read_text() == whole
    _, resumed = read_events(tmp_path / "resumed")  # two files, though of the same second
    # TensorBoard hides what the first file has from this step on.
    assert resumed[0].session_log.status == SessionLog.START
    assert resumed[0].step == (5 if checkpoint else 0)
    assert [event.step for event in resumed[1:3]] == [checkpoint + 1, checkpoint + 2]
    assert not list((tmp_path / "resumed").glob("*.tmp"))


def test_fresh_start_keeps_nothing_not_even_step_0(tmp_path):
    for _ in range(2):
        with MetricsWriter(tmp_path, first_step=0) as writer:
            writer.write(0, {"eval/validation/nll": 9.5})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_killed_process_loses_nothing_written(tmp_path):
    program = (
        "import os, signal, sys; from transformer.logs import MetricsWriter\n"
        "writer = MetricsWriter(sys.argv[1], first_step=0)\n"
        "for step in range(1, 4): writer.write(step, {'train/loss': 0.5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(logs.__file__).parents[1]
    killed = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    (events,) = read_events(tmp_path)
    assert [event.step for event in events] == [0, 1, 2, 3]


@pytest.mark.parametrize("line", ["{", "[1]", '{"train/loss": 1.0}', '{"step": null}', ""])
def test_broken_file_is_named_with_the_line(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: expected"):
        read_metrics(path)
    with pytest.raises(UserError, match="line 2"):
        MetricsWriter(tmp_path, first_step=3)
    assert path.read_text().startswith('{"step": 1}\n')  # left as it was


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl does not exist"):
        read_metrics(tmp_path / "metrics.jsonl")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(logs, "monotonic", clock)
    return clock


def test_lines_without_a_terminal(clock, capsys):
    progress = Progress(100, initial=40)
    for step in range(41, 101):
        clock.now += 2  # 120 seconds in all
        if step == 50:
            progress.update(step)  # a step without values shows those of before
        else:
            progress.update(step, loss=3.21987, tokens_per_second=12345.6)
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        # 1 step in 2 seconds, 59 to go: the 40 steps of before tell nothing of the speed.
        "41/100, 01:58 left, loss 3.22, tokens per second 12,346",
        "56/100, 01:28 left, loss 3.22, tokens per second 12,346",
        "71/100, 00:58 left, loss 3.22, tokens per second 12,346",
        "86/100, 00:28 left, loss 3.22, tokens per second 12,346",
        "100/100, 00:00 left, loss 3.22, tokens per second 12,346",
    ]


def test_close_prints_where_a_run_stopped(clock, capsys):
    with Progress(100, initial=0) as progress:
        clock.now += 1
        progress.update(1, loss=math.nan)
        progress.print("step 1: loss is not finite")
        clock.now += 1
        progress.update(2, loss=1e-5)
    assert capsys.readouterr().err.splitlines() == [
        "1/100, 01:39 left, loss nan",
        "step 1: loss is not finite",
        "2/100, 01:38 left, loss 1e-05",
    ]


def test_nothing_done_nothing_printed(capsys):
    Progress(100, initial=100).close()
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def __init__(self, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch):
        super().__init__()
        size = os.terminal_size((columns, lines))
        monkeypatch.setattr(os, "get_terminal_size", lambda fd: size)
        monkeypatch.setattr(sys, "stderr", self)

    def fileno(self) -> int:
        return -1


def test_bar_on_a_terminal(monkeypatch):
    terminal = Terminal(80, 24, monkeypatch)
    monkeypatch.setattr("tqdm.std.time", Clock())  # stands still: no speed yet
    with Progress(100, initial=40) as progress:
        progress.update(41, loss=3.21987, tokens_per_second=12345.6)
        progress.print("saved step 41")
        progress.update(42)
    written = terminal.getvalue()
    last = written.rstrip("\n").split("\r")[-1]
    assert last.startswith("42/100 |")
    assert last.rstrip().endswith("| ? left, loss 3.22, tokens per second 12,346")
    assert "\rsaved step 41\n" in written


def test_bar_tells_the_time_left_from_this_session(monkeypatch):
    terminal, clock = Terminal(80, 24, monkeypatch), Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    with Progress(100, initial=40) as progress:
        for step in range(41, 51):
            clock.now += 2 if step <= 45 else 6
            progress.update(step)
        assert "50/100 |" in terminal.getvalue()
        # 4 seconds a step on average, 50 to go. Were the earlier 40 steps counted: 00:40.
        assert terminal.getvalue().split("\r")[-1].rstrip().endswith("03:20 left")


def test_lines_on_a_terminal_without_size(monkeypatch):
    terminal = Terminal(0, 0, monkeypatch)
    with Progress(100, initial=0) as progress:
        progress.update(100)
    assert terminal.getvalue() == "100/100, 00:00 left\n"
