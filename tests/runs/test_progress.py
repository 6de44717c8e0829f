import io
import math
import os
import sys

import pytest

from transformer.runs import progress as module
from transformer.runs.progress import Progress


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
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
    Progress(100, initial=100).close()  # which says nothing
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
