"""The metrics of a run: JSON lines, which are exact, and TensorBoard's files, as far as they go."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any, Self

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter
from tqdm import tqdm

from transformer.system.errors import UserError


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
    """Appends the metrics of a run to WORKDIR/metrics.jsonl, and to a file for TensorBoard.

    `first_step` is the step of the checkpoint that the run continues from, 0 for a fresh
    start; `evaluated` says whether the run had evaluated that checkpoint before it stopped.
    What an earlier run wrote beyond that is removed (hidden, in TensorBoard). So in the end
    metrics.jsonl is the same as if nothing had been interrupted. For that to hold, write the
    training metrics of step k before saving the checkpoint of step k, and after both those that
    begin with "eval/".

    A full disk does not end the run. Lines that cannot be written are held in memory, standard
    error says so, and each later call tries again. TensorBoard's file is given up.

    Making a writer raises OSError when the disk is full, and UserError when metrics.jsonl is
    not what `read_metrics` expects. In a job of many processes only one may hold a writer.
    """

    def __init__(self, workdir: Path, *, first_step: int, evaluated: bool):
        workdir.mkdir(parents=True, exist_ok=True)
        self._path = workdir / "metrics.jsonl"
        # Steps, and lines to append; or, in place of a line, whether a cut keeps the evaluation.
        self._held: list[tuple[int, bytes | bool]] = []
        self._whole: int | None = None  # the file's length without a line that was torn
        self._trouble: str | None = None
        _cut(self._path, first_step, evaluated=evaluated)
        # The number keeps two files of the same second apart. Not SummaryWriter: its queue and
        # its thread lose what waits in them when the process is killed.
        number = len(list(workdir.glob("events.out.tfevents.*")))
        name = f"events.out.tfevents.{int(time())}.{gethostname()}.{number:04}"
        self._events: RecordWriter | None = RecordWriter(str(workdir / name))
        self._add_event(Event(wall_time=time(), file_version="brain.Event:2"))
        self._hide_later_events(first_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one step; a step may have several lines.

        NaN and infinities become null in the JSON file, which has no word for them, and
        stay what they are in TensorBoard.
        """
        if "step" in metrics:
            raise ValueError("'step' is the first argument, not a metric")
        values = {name: float(metrics[name]) for name in sorted(metrics)}
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        line = json.dumps({"step": int(step), **finite}, allow_nan=False) + "\n"
        self._held.append((step, line.encode()))
        scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        self._add_event(Event(step=int(step), wall_time=time(), summary=Summary(value=scalars)))
        self._flush()

    def rewind(self, step: int, *, evaluated: bool) -> None:
        """Removes what later steps than `step` wrote, all if it is 0: the run is back there.

        Unless `evaluated`, the checkpoint of `step` is evaluated again, and its line goes too.
        """
        self._held = [held for held in self._held if held[0] <= step]
        self._held.append((step, evaluated))
        self._hide_later_events(step)
        self._flush()

    def close(self) -> None:
        self._flush()
        lines = sum(isinstance(line, bytes) for _, line in self._held)
        if self._trouble and lines:
            _warn(f"{self._trouble}; {lines} line(s) of metrics.jsonl are lost")
        if self._events:
            with contextlib.suppress(OSError):
                self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _flush(self) -> None:
        """Writes what is held, as far as the disk takes it."""
        before, self._trouble = self._trouble, None
        try:
            while self._held:
                step, line = self._held[0]
                if isinstance(line, bytes):
                    self._append(line)
                else:
                    _cut(self._path, step, evaluated=line)
                del self._held[0]
        except OSError as error:
            self._trouble = f"cannot write {self._path}: {error.strerror}"
        except UserError as error:
            self._trouble = str(error)
        if self._trouble and not before:
            _warn(
                f"{self._trouble}; the training goes on, and what is not written is held in "
                "memory and tried again with each new line"
            )
        elif before and not self._trouble:
            _warn("can be written again, and nothing is lost")

    def _append(self, line: bytes) -> None:
        # Opened anew each time: a file of a network that went away and came back is another.
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            if self._whole is not None and self._whole < size:
                size = file.truncate(self._whole)
            self._whole = size
            try:
                while line:
                    line = line[file.write(line) :]  # a disk may take a part
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
            self._whole = None

    def _hide_later_events(self, step: int) -> None:
        # As SummaryWriter does for its purge_step: TensorBoard drops what it has read of this
        # step and later ones. Of a step that is evaluated again it may have two equal values.
        start = SessionLog(status=SessionLog.START)
        hidden_from = step + 1 if step else 0
        self._add_event(Event(step=hidden_from, wall_time=time(), session_log=start))

    def _add_event(self, event: Event) -> None:
        if self._events is None:
            return
        try:
            self._events.write(event.SerializeToString())
            self._events.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # what it could not write, once more
                self._events.close()
            self._events = None
            _warn(f"TensorBoard's file ends at step {event.step}: {error.strerror}")


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


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may lie on the full disk
        tqdm.write(f"warning: metrics: {text}", file=sys.stderr)
