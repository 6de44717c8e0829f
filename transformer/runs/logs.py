"""What a run says while it runs: metrics in files, progress on standard error."""

import contextlib
import json
import math
import os
import struct
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from socket import gethostname
from time import monotonic, time
from typing import Any, NamedTuple, Self, TextIO

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tqdm import tqdm

from transformer.system.errors import UserError

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
            if not isinstance(values["step"], int):
                raise TypeError("a step is a whole number")
            for value in values.values():
                if value is not None:
                    math.isfinite(value)  # TypeError if it is no number
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise UserError(
                f'{path}, line {number}: expected an object such as {{"step": 100, '
                f'"train/loss": 3.5}}, found {line[:60]!r}: remove the line'
            ) from error
        metrics.append(values)
    return metrics


class MetricsWriter:
    """Appends the metrics of a run to WORKDIR/metrics.jsonl and to TensorBoard's files.

    `first_step` is the step of the checkpoint that the run continues from, 0 for a fresh
    start; `evaluated` says whether the run had evaluated that checkpoint before it stopped.
    What an earlier run wrote beyond that is removed (hidden, in TensorBoard), and on a fresh
    start everything is: in the end metrics.jsonl is the same as if nothing had been
    interrupted. For that to hold, write the training metrics of step k before saving the
    checkpoint of step k, and after both those that begin with "eval/".

    A full disk does not end the run: what cannot be written is held in memory, standard
    error says so, and each later call tries again. A killed process loses the line in hand
    and what is held. In a run of many processes only one may hold a writer.

    Making a writer raises OSError when the disk is full, and UserError when metrics.jsonl is
    not what `read_metrics` expects.
    """

    def __init__(self, workdir: str | Path, *, first_step: int, evaluated: bool):
        workdir = Path(workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        self._metrics = _Appended(workdir / "metrics.jsonl")
        _cut(self._metrics.path, first_step, evaluated=evaluated)
        # Not SummaryWriter: its queue and thread lose what waits in them when the process
        # is killed. The number keeps two files of the same second apart.
        number = len(list(workdir.glob("events.out.tfevents.*")))
        name = f"events.out.tfevents.{int(time())}.{gethostname()}.{number:04}"
        self._events = _Appended(workdir / name)
        self._events.add(0, _record(Event(wall_time=time(), file_version="brain.Event:2")))
        self._hide_later_events(first_step)
        self._events.flush()
        self._error: OSError | UserError | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one step; a step may have several lines.

        NaN and infinities become null in the JSON file, which has no word for them, and
        stay what they are in TensorBoard.
        """
        if "step" in metrics:
            raise ValueError("'step' is the first argument, not a metric")
        step = int(step)
        values = {name: float(metrics[name]) for name in sorted(metrics)}
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        line = json.dumps({"step": step, **finite}, allow_nan=False) + "\n"
        scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        event = Event(step=step, wall_time=time(), summary=Summary(value=scalars))
        self._metrics.add(step, line.encode())
        self._events.add(step, _record(event))
        self._flush()

    def rewind(self, step: int, *, evaluated: bool) -> None:
        """Removes what later steps than `step` wrote, all if it is 0: the run is back there.

        Unless `evaluated`, the checkpoint of `step` is evaluated again, and its line goes too.
        """
        self._metrics.drop_later(step)
        self._metrics.add(step, _Cut(evaluated))
        self._events.drop_later(step)
        self._hide_later_events(step)
        self._flush()

    def close(self) -> None:
        self._flush(closing=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _hide_later_events(self, step: int) -> None:
        # As SummaryWriter does for its purge_step: TensorBoard drops what it has read of this
        # step and later ones. Of a step that is evaluated again it may have two equal values.
        start = SessionLog(status=SessionLog.START)
        hidden_from = step + 1 if step else 0
        event = Event(step=hidden_from, wall_time=time(), session_log=start)
        self._events.add(step, _record(event))

    def _flush(self, *, closing: bool = False) -> None:
        error = None
        for file in (self._events, self._metrics):
            try:
                file.flush()
            except (OSError, UserError) as e:
                error = e
        if error and closing:
            _print(
                f"metrics: {_reason(error)}; {self._metrics.num_held} line(s) of metrics.jsonl "
                f"and {self._events.num_held} event(s) of TensorBoard are lost",
                sys.stderr,
            )
        elif error and not self._error:
            _print(
                f"metrics: {_reason(error)}; the training goes on, and what is not written is "
                "held in memory and tried again with each new line",
                sys.stderr,
            )
        elif self._error and not error:
            _print("metrics: can be written again, and nothing is lost", sys.stderr)
        self._error = error


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
        _print(text, self._stream)

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


class _Cut(NamedTuple):
    """Instead of a piece to append: the lines of later steps go, as `_cut` says."""

    evaluated: bool


class _Appended:
    """A file to append to. What the disk does not take is held, and comes first next time."""

    def __init__(self, path: Path):
        self.path = path
        self._held: list[tuple[int, bytes | _Cut]] = []  # steps and what to do
        # While a piece is being appended, and after that failed: the length without it.
        self._whole: int | None = None

    @property
    def num_held(self) -> int:
        return sum(isinstance(piece, bytes) for _, piece in self._held)

    def add(self, step: int, piece: bytes | _Cut) -> None:
        self._held.append((step, piece))

    def drop_later(self, step: int) -> None:
        self._held = [held for held in self._held if held[0] <= step]

    def flush(self) -> None:
        """Writes what is held, as far as the disk takes it; then raises OSError."""
        try:
            while self._held:
                step, piece = self._held[0]
                if isinstance(piece, _Cut):
                    _cut(self.path, step, evaluated=piece.evaluated)
                else:
                    self._append(piece)
                del self._held[0]
        except OSError as error:  # that of a write does not name the file
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _append(self, piece: bytes) -> None:
        # Opened anew each time: a file of a network that went away and came back is another.
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            if self._whole is not None and self._whole < size:
                size = file.truncate(self._whole)
            self._whole = size
            try:
                while piece:
                    piece = piece[file.write(piece) :]  # a disk may take a part
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
            self._whole = None


def _cut(path: Path, step: int, *, evaluated: bool) -> None:
    """Ends a metrics.jsonl before the first line of a later step, the first of all for step 0.

    Unless `evaluated`, an evaluation of `step` itself counts as later. A torn last line goes
    too. Steps grow in the file, so what stays is its beginning, and this needs no room.
    """

    def is_later(line: dict[str, Any]) -> bool:
        again = not evaluated and any(name.startswith("eval/") for name in line)
        return line["step"] > step or (line["step"] == step and again)

    path.touch()
    metrics = read_metrics(path) if step else []
    kept = next((i for i, line in enumerate(metrics) if is_later(line)), len(metrics))
    with path.open("r+b") as file:
        file.truncate(sum(map(len, islice(file, kept))))
        os.fsync(file.fileno())


def _record(event: Event) -> bytes:
    """A TFRecord: length, its checksum, the event, its checksum."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]


def _reason(error: OSError | UserError) -> str:
    if isinstance(error, OSError):
        return f"cannot write {error.filename}: {error.strerror}"
    return str(error)


def _print(text: str, stream: TextIO) -> None:
    """Prints above the bar, if there is one; leaves out what nobody takes.

    The disk may be full, or the reader gone: no reason to end a run.
    """
    with contextlib.suppress(OSError):
        tqdm.write(text, file=stream)
        stream.flush()


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
