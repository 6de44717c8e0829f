"""The progress of a run, on standard error."""

import contextlib
import math
import sys
from time import monotonic
from typing import Self

from tqdm import tqdm

from transformer.system.terminal import columns, printable

SECONDS_BETWEEN_LINES = 30.0  # without a terminal


class Progress:
    """A progress bar for a run of `total` steps that starts at step `initial`.

    Shows the step, the time left and the values given to `update`. If standard error is a terminal,
    it gets the bar; otherwise it gets a line for the first update, for the last, and at most one
    every 30 seconds between, which keeps the log of a job short.

    The time left follows from the mean speed since the bar was made. So steps of an earlier session
    do not count, while pauses for validation do.
    """

    def __init__(self, total: int, *, initial: int):
        self._total = total
        self._initial = initial
        self._stream = sys.stderr
        self._start = monotonic()
        self._step = initial
        self._shown = ""
        self._printed_step = initial
        self._printed_at = -math.inf
        self._bar = None
        if columns(self._stream):
            self._bar = tqdm(
                total=total,
                initial=initial,
                file=self._stream,
                smoothing=0,  # the mean speed; that of the last few steps makes it jump
                dynamic_ncols=True,
                bar_format="{n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}",
            )

    def update(self, step: int, **shown: float) -> None:
        """Moves to `step` and shows, say, loss=3.2; without values, shows the previous ones."""
        self._step = step
        if shown:
            self._shown = ", ".join(f"{_words(k)} {_number(v)}" for k, v in shown.items())
        if self._bar is not None:
            self._bar.set_postfix_str(self._shown, refresh=False)
            self._bar.update(step - self._bar.n)
        elif step >= self._total or monotonic() - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._print_line()

    def print(self, text: str) -> None:
        """Prints a message above the bar."""
        with contextlib.suppress(OSError):  # a full disk or a closed reader is no reason to end
            tqdm.write("\n".join(map(printable, text.split("\n"))), file=self._stream)
            self._stream.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._step != self._printed_step:
            self._print_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _print_line(self) -> None:
        self._printed_at = monotonic()
        self._printed_step = self._step
        done = self._step - self._initial
        left = "?"
        if done > 0:
            seconds = (self._printed_at - self._start) / done * (self._total - self._step)
            left = tqdm.format_interval(seconds)
        line = f"{self._step}/{self._total}, {left} left"
        self.print(f"{line}, {self._shown}" if self._shown else line)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
