"""The metrics of a run: exact JSON lines, and TensorBoard's files as far as its format allows."""

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any, Self

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import hparams
from tqdm import tqdm

from transformer.data.pictures import Picture
from transformer.system.errors import UserError
from transformer.system.paths import looked_up
from transformer.system.reading import MISSING, Number, open_plain, read_json_lines
from transformer.system.terminal import named


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl as dicts, in order; a value that was not finite is None.

    Leaves out a torn last line, of a run that is writing or was killed. Raises UserError if the
    file is missing or is not one that `MetricsWriter` writes.
    """
    path = Path(path)
    mend = 'expected an object such as {"step": 100, "train/loss": 3.5}: remove the line'
    try:
        metrics = read_json_lines(
            path, path.parent, dict[str, Number | None], mend, is_growing=True
        )
    except MISSING as error:
        raise UserError(
            f"{path} does not exist{looked_up(path)}: give the metrics.jsonl of a training run"
        ) from error
    for number, values in enumerate(metrics, start=1):
        if type(values.get("step")) is not int:
            raise UserError(f"{path}, line {number}: {mend} (it has no step)")
    return metrics


class MetricsWriter:
    """Appends the metrics of a run to WORKDIR/metrics.jsonl, and to a file for TensorBoard.

    first_step: the step of the checkpoint that the run continues from, 0 for a fresh start.
    evaluated: whether the run had evaluated that checkpoint before it stopped.
    fields: the config's fields, which TensorBoard shows beside the metrics named in `outcomes`.

    Anything an earlier start wrote beyond that step is removed (in TensorBoard, hidden). So
    metrics.jsonl ends up the same as without interruptions, provided that the training metrics of
    step k are written before the checkpoint of step k is saved, and those that begin with "eval/"
    after both.

    A full disk does not end the run. Lines that cannot be written are held in memory, with a
    message on standard error, and written with the next ones. TensorBoard's file ends there.

    The constructor and `rewind` raise OSError if the disk fails, and UserError if metrics.jsonl is
    not what `read_metrics` expects. Only one process of a job may have a writer.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        first_step: int,
        evaluated: bool,
        fields: Mapping[str, Any] | None = None,
        outcomes: Sequence[str] = (),
    ):
        workdir.mkdir(parents=True, exist_ok=True)
        self._path = workdir / "metrics.jsonl"
        self._held: list[dict[str, Any]] = []  # lines to append
        self._trouble: str | None = None
        self._size = _cut(self._path, first_step, evaluated)  # without a torn line
        # The number keeps two files of the same second apart. SummaryWriter is not used: on a full
        # disk its thread dies, and then its queue blocks the callers that write to it.
        number = len(list(workdir.glob("events.out.tfevents.*")))
        name = f"events.out.tfevents.{int(time())}.{gethostname()}.{number:04}"
        self._events: RecordWriter | None = RecordWriter(str(workdir / name))
        self._add_event(Event(wall_time=time(), file_version="brain.Event:2"))
        for summary in hparams(fields, dict.fromkeys(outcomes)) if fields else ():
            self._add_event(Event(wall_time=time(), summary=summary))
        self._hide_later_events(first_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one step; a step may have several lines.

        NaN and infinities become null in the JSON file, which cannot express them; TensorBoard
        keeps them.
        """
        if "step" in metrics:
            raise ValueError("'step' is the first argument, not a metric")
        values = {name: float(metrics[name]) for name in sorted(metrics)}
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        self._held.append({"step": int(step), **finite})
        self._flush()
        scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
        self._add_event(Event(step=int(step), wall_time=time(), summary=Summary(value=scalars)))

    def write_picture(self, step: int, name: str, picture: Picture) -> None:
        """Shows a picture in TensorBoard."""
        image = Summary.Image(
            height=picture.height,
            width=picture.width,
            colorspace=3,
            encoded_image_string=picture.png,
        )
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self._add_event(Event(step=int(step), wall_time=time(), summary=summary))

    def rewind(self, step: int, *, evaluated: bool) -> None:
        """Removes the lines of steps after `step`, all lines if it is 0: the run is back there.

        Unless `evaluated`, the checkpoint of `step` is evaluated again, and its line goes too.
        """
        self._held = [line for line in self._held if not _is_later(line, step, evaluated)]
        self._size = _cut(self._path, step, evaluated)
        self._hide_later_events(step)

    def close(self) -> None:
        self._flush()
        if self._held:
            _warn(f"{self._trouble}; {len(self._held)} line(s) of metrics.jsonl are lost")
        if self._events:
            with contextlib.suppress(OSError):
                self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _flush(self) -> None:
        """Appends the held lines, all or none."""
        lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._held).encode()
        try:
            # Opened each time: after an outage a network file system may hold a different file.
            with open_plain(self._path, self._path.parent, "ab", buffering=0) as file:
                self._size = file.truncate(min(self._size, file.tell()))
                try:
                    if file.write(lines) < len(lines):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(self._size)
                    raise
        except OSError as error:
            if not self._trouble:
                self._trouble = f"cannot write {self._path}: {error.strerror}"
                _warn(f"{self._trouble}; training goes on, and new lines wait in memory")
        else:
            self._size += len(lines)
            self._held, self._trouble = [], None

    def _hide_later_events(self, step: int) -> None:
        """Makes TensorBoard drop the values it has read for later steps, all of them for step 0.

        SummaryWriter does the same for its purge_step. TensorBoard may show two equal values for a
        step that is evaluated again.
        """
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
            with contextlib.suppress(OSError):  # the lines it could not write, once more
                self._events.close()
            self._events = None
            _warn(f"TensorBoard's file ends at step {event.step}: {error.strerror}")


def _is_later(line: Mapping[str, Any], step: int, evaluated: bool) -> bool:
    """True if a line is removed when the run is back at `step`."""
    again = not evaluated and any(name.startswith("eval/") for name in line)
    return step == 0 or line["step"] > step or (line["step"] == step and again)


def _cut(path: Path, step: int, evaluated: bool) -> int:
    """Ends a metrics.jsonl before its first line that `_is_later`; returns its new length.

    A torn last line goes, too.

    Steps grow in the file, so its beginning stays, and cutting needs no disk space.
    """
    open_plain(path, path.parent, "ab").close()  # creates it
    metrics = read_metrics(path) if step else []
    later = (i for i, line in enumerate(metrics) if _is_later(line, step, evaluated))
    kept = next(later, len(metrics))
    with open_plain(path, path.parent, "r+b") as file:
        size = file.truncate(sum(map(len, islice(file, kept))))
        os.fsync(file.fileno())
    return size


def _warn(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may be on the full disk
        tqdm.write(named(f"warning: metrics: {text}"), file=sys.stderr)
