"""What a run says while it runs: metrics in files, progress on standard error."""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, time
from typing import Any, Self, TextIO

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tqdm import tqdm

from transformer.errors import UserError
from transformer.files import write_atomically

SECONDS_BETWEEN_LINES = 30.0  # of Progress, where there is no terminal


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl as dicts, in order; a value that was not finite is None.

    A torn last line, of a run that is being written or was killed, is left out. Raises
    UserError when the file is missing or is not what `MetricsWriter` writes.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: give the metrics.jsonl of a training run")
    lines = path.read_bytes().split(b"\n")
    metrics = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last \n is torn
        try:
            values = json.loads(line)
            int(values["step"])
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f'{path}, line {number}: expected an object such as {{"step": 100, '
                f'"train/loss": 3.5}}, found {line[:60]!r}: remove the line'
            ) from error
        metrics.append(values)
    return metrics


class MetricsWriter:
    """Appends the metrics of a run to WORKDIR/metrics.jsonl and to TensorBoard's files.

    `first_step` is the step of the checkpoint that the run continues from, 0 for a fresh
    start. What an earlier run wrote of later steps, and died before it could save, is
    removed (hidden, in TensorBoard), and on a fresh start everything is: in the end
    metrics.jsonl is the same as if nothing had been interrupted. For that to hold, write
    the metrics of step k before saving the checkpoint of step k.

    A killed process loses at most the line in hand. In a run of many processes only one
    may hold a writer.
    """

    def __init__(self, workdir: str | Path, *, first_step: int):
        workdir = Path(workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / "metrics.jsonl"
        if path.exists():
            _remove_later_steps(path, first_step)
        self._file = path.open("a", encoding="utf-8")
        # Not SummaryWriter: its queue and thread lose what waits in them when the process
        # is killed. The number keeps two files of the same second apart.
        number = len(list(workdir.glob("events.out.tfevents.*")))
        self._events = EventsWriter(str(workdir / "events"), filename_suffix=f".{number:04}")
        # As SummaryWriter does for its purge_step: TensorBoard drops what earlier files hold
        # of this step and later ones.
        purge_step = first_step + 1 if first_step else 0
        self._events.write_event(
            Event(
                step=purge_step,
                wall_time=time(),
                session_log=SessionLog(status=SessionLog.START),
            )
        )
        self._events.flush()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one step; a step may have several lines.

        NaN and infinities become null in the JSON file, which has no word for them, and
        stay what they are in TensorBoard.
        """
        if "step" in metrics:
            raise ValueError("'step' is the first argument, not a metric")
        values = {name: float(metrics[name]) for name in sorted(metrics)}
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        self._file.write(_json_line({"step": int(step), **finite}))
        self._file.flush()
        scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        self._events.write_event(Event(step=step, wall_time=time(), summary=Summary(value=scalars)))
        self._events.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Progress:
    """A progress bar for a run of `total` steps that starts at step `initial`.

    Shows the step, the time left and whatever `update` is given. Standard error gets the
    bar if it is a terminal, otherwise a line for the first update, for the last, and at
    most one each 30 seconds between, which keeps the log of a job short.

    The time left follows from the mean speed since the bar was made, so steps of an earlier
    session do not count, while pauses for validation do.
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
        if _is_terminal(self._stream):
            self._bar = tqdm(
                total=total,
                initial=initial,
                file=self._stream,
                smoothing=0,  # the mean speed; the last few steps' alone makes it jump
                dynamic_ncols=True,
                bar_format="{n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}",
            )

    def update(self, step: int, **shown: float) -> None:
        """Moves to `step` and shows, say, loss=3.2; without values, those of before."""
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
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

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


def _is_terminal(stream: TextIO) -> bool:
    # Job systems and containers hand out terminals of size 0, where tqdm draws nothing.
    try:
        return 0 not in os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return False


def _remove_later_steps(path: Path, last_step: int) -> None:
    metrics = read_metrics(path) if last_step > 0 else []
    kept = (_json_line(values) for values in metrics if values["step"] <= last_step)
    write_atomically(path, "".join(kept))


def _json_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
