import contextlib
import errno
import itertools
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from processes import no_room_beyond
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from transformer.data.pictures import Picture
from transformer.runs.metric_writers import MetricsWriter, read_metrics
from transformer.system.errors import UserError


def read_events(workdir: Path) -> list[list[Event]]:
    """The events of each file, oldest file first, after the one with the file's version."""
    files = []
    for path in sorted(workdir.glob("events.out.tfevents.*")):
        data, events, start = path.read_bytes(), [], 0
        # As TensorFlow begins such a file: 24 bytes to come, and their checksum.
        assert data.startswith(b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22")
        while start < len(data):  # length, its checksum, event, its checksum
            (length,) = struct.unpack_from("<Q", data, start)
            event = data[start + 12 : start + 12 + length]
            (checksum,) = struct.unpack_from("<I", data, start + 12 + length)
            assert checksum == masked_crc32c(event)
            events.append(Event.FromString(event))
            start += 16 + length
        assert events[0].file_version == "brain.Event:2"
        files.append(events[1:])
    return files


def scalars(event: Event) -> tuple[int, dict[str, float]]:
    return event.step, {value.tag: value.simple_value for value in event.summary.value}


def test_one_line_a_call_and_the_same_for_tensorboard(tmp_path):
    workdir = tmp_path / "new" / "run"
    with MetricsWriter(workdir, first_step=0, evaluated=True) as writer:
        writer.write(np.int64(100), {"train/nll": 3, "train/loss": np.float32(3.5)})
        writer.write(200, {"train/loss": math.nan})
        with pytest.raises(ValueError, match="metric"):
            writer.write(1, {"step": 2.0})
    assert (workdir / "metrics.jsonl").read_text() == (
        '{"step": 100, "train/loss": 3.5, "train/nll": 3.0}\n{"step": 200, "train/loss": null}\n'
    )
    ((start, first, second),) = read_events(workdir)
    assert (start.step, start.session_log.status) == (0, SessionLog.START)
    assert scalars(first) == (100, {"train/loss": 3.5, "train/nll": 3.0})
    assert scalars(second) == (200, {"train/loss": pytest.approx(math.nan, nan_ok=True)})
    assert 0 < first.wall_time <= second.wall_time


def test_a_picture_for_tensorboard_alone(tmp_path):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        writer.write_picture(100, "samples", Picture(b"a PNG", 3, 5))
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    ((_, event),) = read_events(tmp_path)
    (value,) = event.summary.value
    assert (event.step, value.tag) == (100, "samples")
    assert (value.image.encoded_image_string, value.image.height) == (b"a PNG", 3)


def write_steps(workdir: Path, first_step: int, steps: range, evaluated: bool = True) -> None:
    with MetricsWriter(workdir, first_step=first_step, evaluated=evaluated) as writer:
        for step in steps:
            writer.write(step, {"train/loss": 1 / step, "train/nll": math.nan})
            if step % 2 == 0:
                writer.write(step, {"eval/validation/nll": 0.1 * step})


@pytest.mark.parametrize(
    ("torn", "checkpoint"), [('{"step": 8, "train/lo', 0), ('{"step": 8}', 4), ("\0\0", 4)]
)
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


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[1]", '{"train/loss": 1.0}', '{"step": null}', '{"step": "7"}'),
        *('{"step": 1e999}', '{"step": 2, "loss": [1]}', 100_000 * "["),
    ],
    ids=range(9),
)
def test_broken_file_is_named_with_the_line(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(UserError, match=r"metrics\.jsonl does not exist"):
        read_metrics(path)
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: expected"):
        read_metrics(path)
    with pytest.raises(UserError, match="line 2"):
        MetricsWriter(tmp_path, first_step=3, evaluated=True)
    assert path.read_text().startswith('{"step": 1}\n')  # left as it was


# --- What later steps wrote is removed ----------------------------------------------------


def written(workdir: Path) -> list[tuple[int, str]]:
    """Step and first name of each line of metrics.jsonl, which must have no torn line."""
    path = workdir / "metrics.jsonl"
    assert path.read_bytes()[-1:] in (b"", b"\n")
    return [(line["step"], list(line)[1]) for line in read_metrics(path)]


def shown(workdir: Path) -> list[tuple[int, str]]:
    """Step and first name of what TensorBoard shows, oldest first."""
    points = []
    for event in itertools.chain(*read_events(workdir)):
        if event.session_log.status == SessionLog.START:
            points = [point for point in points if point[0] < event.step]
        else:
            points.append((event.step, event.summary.value[0].tag))
    return points


TRAIN, EVAL = "train/loss", "eval/validation/nll"


@pytest.mark.parametrize("step", [0, 3, 7])
def test_rewind(tmp_path, capsys, step):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        if step == 0:
            writer.write(0, {EVAL: 9.5})
        for k in range(1, 6):
            writer.write(k, {TRAIN: k})
            writer.write(k, {EVAL: k})
        writer.rewind(step, evaluated=True)
        kept = [(k, name) for k in range(1, min(step, 5) + 1) for name in (TRAIN, EVAL)]
        assert written(tmp_path) == shown(tmp_path) == kept
        writer.write(step + 1, {"train/nll": 1})
        writer.rewind(step + 1, evaluated=True)  # nothing is later
    assert written(tmp_path) == shown(tmp_path) == [*kept, (step + 1, "train/nll")]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("is_full", [True, False])
def test_rewind_to_a_step_that_is_evaluated_again(tmp_path, evaluated, is_full):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        writer.write(3, {TRAIN: 0.5})
        with no_room_beyond(0) if is_full else contextlib.nullcontext():
            writer.write(3, {EVAL: 0.5})
            writer.write(4, {TRAIN: 0.5})
            writer.rewind(3, evaluated=evaluated)
        writer.write(3, {EVAL: 0.5})
    assert written(tmp_path) == [(3, TRAIN), *[(3, EVAL)] * (1 + evaluated)]


# --- Disks that are full or away ----------------------------------------------------------


@contextlib.contextmanager
def away(directory: Path):
    elsewhere = directory.rename(directory.with_name("elsewhere"))
    yield
    elsewhere.rename(directory)


def said(capsys: pytest.CaptureFixture) -> list[str]:
    """Messages of metrics.jsonl."""
    return [x for x in capsys.readouterr().err.splitlines() if "TensorBoard" not in x]


@pytest.mark.parametrize("room", [0, 1, 46, 47, 48, 120])
def test_no_room_for_a_while(tmp_path, capsys, room):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        for k in range(100, 108):
            writer.write(k, {TRAIN: 0.5, "train/grad_norm": math.nan})
        for _ in range(2):
            with no_room_beyond((tmp_path / "metrics.jsonl").stat().st_size + room):
                for _ in range(3):
                    k += 1
                    writer.write(k, {TRAIN: 0.5, "train/grad_norm": math.nan})
                    steps = list(range(100, k + 1))
                    points = written(tmp_path)  # which is not torn
                    assert [step for step, _ in points] == steps[: len(points)]
            (message,) = said(capsys)
            assert "training goes on" in message
            k += 1
            writer.write(k, {TRAIN: 0.5, "train/grad_norm": math.nan})
    assert written(tmp_path) == [(k, "train/grad_norm") for k in range(100, 116)]
    assert said(capsys) == []


def test_directory_that_is_away(tmp_path, capsys):
    workdir = tmp_path / "run"
    with MetricsWriter(workdir, first_step=0, evaluated=True) as writer:
        writer.write(1, {TRAIN: 0.5})
        with away(workdir):
            writer.write(2, {TRAIN: 0.5})
            writer.write(2, {EVAL: 0.5})
            (message,) = capsys.readouterr().err.splitlines()
        assert message == (
            f"warning: metrics: cannot write {workdir / 'metrics.jsonl'}: No such file or "
            "directory; training goes on, and new lines wait in memory"
        )
    # Closed without another write.
    assert written(workdir) == shown(workdir) == [(1, TRAIN), (2, TRAIN), (2, EVAL)]


def test_lost_at_the_end(tmp_path, capsys):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        writer.write(1, {TRAIN: 0.5})
        with no_room_beyond(0):
            for k in (2, 3, 4):
                writer.write(k, {TRAIN: 0.5})
            assert len(said(capsys)) == 1
            writer.close()
            assert capsys.readouterr().err == (
                f"warning: metrics: cannot write {tmp_path / 'metrics.jsonl'}: File too large; "
                "3 line(s) of metrics.jsonl are lost\n"
            )
            assert written(tmp_path) == [(1, TRAIN)]


def test_tensorboard_is_given_up_once_its_disk_fails(tmp_path, capsys):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        writer.write(1, {TRAIN: 0.5})
        (events,) = tmp_path.glob("events.*")
        assert events.stat().st_size > 2 * (tmp_path / "metrics.jsonl").stat().st_size
        with no_room_beyond(events.stat().st_size):
            writer.write(2, {TRAIN: 0.5})
        writer.write(3, {TRAIN: 0.5})
    (message,) = capsys.readouterr().err.splitlines()
    assert message == "warning: metrics: TensorBoard's file ends at step 2: File too large"
    assert written(tmp_path) == [(1, TRAIN), (2, TRAIN), (3, TRAIN)]
    assert shown(tmp_path) == [(1, TRAIN)]


@pytest.mark.parametrize("interruption", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_written_but_not_seen_to_the_disk(tmp_path, monkeypatch, interruption):
    calls = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) in (1, 2):
            raise interruption

    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        writer.write(1, {TRAIN: 0.5})
        monkeypatch.setattr(os, "fsync", fsync)
        for k in range(2, 6):
            with contextlib.suppress(KeyboardInterrupt):
                writer.write(k, {TRAIN: 0.5})
    assert written(tmp_path) == [(k, TRAIN) for k in range(1, 6)]
    assert len(calls) >= 4


@pytest.mark.parametrize("step", [0, 3, 5])
def test_rewind_without_room(tmp_path, capsys, step):
    with MetricsWriter(tmp_path, first_step=0, evaluated=True) as writer:
        for k in (1, 2, 3):
            writer.write(k, {TRAIN: 0.5})
        with no_room_beyond(0):
            for k in (4, 5, 6):
                writer.write(k, {TRAIN: 0.5})
            writer.rewind(5, evaluated=True)
            writer.rewind(step, evaluated=True)
            writer.write(step + 1, {EVAL: 0.5})
            assert written(tmp_path) == [(k, TRAIN) for k in range(1, min(step, 3) + 1)]
    kept = [(k, TRAIN) for k in range(1, step + 1)]
    assert written(tmp_path) == [*kept, (step + 1, EVAL)]
    assert len(said(capsys)) == 1


def test_tensorboard_shows_the_fields_of_the_config(tmp_path):
    fields = {"model.d_model": 7, "optimizer.name": "adam", "data.raw_dir": None}
    kind = dict(first_step=0, evaluated=True, fields=fields, outcomes=["train/nll"])
    with MetricsWriter(tmp_path, **kind) as writer:
        writer.write(1, {"train/nll": 2.0})
    (events,) = read_events(tmp_path)
    found = [value for event in events for value in event.summary.value]
    assert [value.tag.split("/")[-1] for value in found] == [
        *("experiment", "session_start_info", "session_end_info", "nll")
    ]
    content = found[1].metadata.plugin_data.content
    assert b"model.d_model" in content
    assert b"adam" in content
    assert b"train/nll" in found[0].metadata.plugin_data.content
