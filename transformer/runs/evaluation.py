"""A trained model on a split or a test set: what it makes of it, written to the work directory."""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer.data.test_sets import TestSet
from transformer.runs import run_config
from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel
from transformer.runs.trusted_paths import absolute
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically
from transformer.tasks import seq2seq
from transformer.tasks.task import Outputs, find_task

LATEST = "latest"  # below WORKDIR/eval: a link to the folder that was written last


def check_can_evaluate(model: TrainedModel, splits: Sequence[str]) -> None:
    """Raises UserError for splits that are not there, and where outputs cannot be written.

    Better before hours of work than after.
    """
    model.check_paths()
    with distributed.first_alone():
        for split in splits:
            find_task(model.config.task.name).content_sha256(model.task.data, split)
    for split in splits:
        _check_place(model, split)


def evaluate(model: TrainedModel, split: str) -> Outputs:
    """Outputs for a split, by the devices of all processes; process 0 prints and writes them."""
    model.check_paths()
    with _told(model, split) as progress:
        start = time.monotonic()
        outputs = model.task.evaluate(model.params, model.extra, split, progress)
    _write(model, split, outputs, time.monotonic() - start)
    return outputs


def evaluate_test_set(model: TrainedModel, test: TestSet) -> Outputs:
    """As `evaluate`, for a test set that the config does not name."""
    check_task(model.workdir, model.config)
    _check_place(model, test.name)
    with _told(model, test.name) as progress:
        start = time.monotonic()
        hypotheses = model.task.translate(
            model.params, model.extra, test.sources, lambda done: progress(done, len(test.sources))
        )
    data = model.task.data
    outputs = seq2seq.score_test_set(data.target_language, data.is_tokenized, test, hypotheses)
    _write(model, test.name, outputs, time.monotonic() - start)
    return outputs


def name_of(model: TrainedModel, of: str) -> str:
    """A folder below WORKDIR/eval: what was evaluated, and in what it was not as by default."""
    parts = [of]
    default = model.checkpoint if (model.workdir / run_config.EXPORTED).exists() else "best"
    if model.checkpoint == "average" != default:
        parts.append(f"average-{len(model.steps)}-at-{model.steps[-1]}")
    elif model.checkpoint != default:
        parts.append(f"step-{model.steps[-1]}")
    if model.config.decoding:
        usual, asked = model.config.decoding, model.task.translator.config
        for field in dataclasses.fields(usual):
            value = getattr(asked, field.name)
            if value != getattr(usual, field.name):
                parts.append(f"{field.name}={value}")
    for field, given in _other_data(model, of).items():
        configured = getattr(model.config.data, field)
        # What is given where the config's is not there takes its place: data move.
        if configured and os.path.exists(absolute(configured)):
            parts.append(f"{field}={os.path.basename(absolute(given))}")
    if model.others:
        others = "\n".join(str(other.workdir.resolve()) for other in model.others)
        parts.append(f"ensemble-{hashlib.sha256(others.encode()).hexdigest()[:8]}")
    return "-".join(parts)


def _other_data(model: TrainedModel, of: str) -> dict[str, str]:
    """The places of data that are not those of the run's config, by field.

    data.data_dir is left out: it keeps what can be made or downloaded again.
    """
    usual, asked = model.config.data, model.task.data
    fields = ("raw_dir", "test_file") if of == "test" else ("raw_dir",)
    pairs = {field: (getattr(usual, field, None), getattr(asked, field, None)) for field in fields}
    return {
        field: given
        for field, (configured, given) in pairs.items()
        if given and not (configured and absolute(given) == absolute(configured))
    }


def write_outputs(workdir: Path, name: str, outputs: Outputs, scores: dict[str, Any]) -> Path:
    """WORKDIR/eval/<name>/: the texts, one example a line, and scores.json last."""
    directory = _folder(workdir, name)
    for text, lines in outputs.texts.items():
        write_atomically(directory / f"{text}.txt", one_a_line(lines))
    for file, content in outputs.files.items():
        write_atomically(directory / file, content)
    write_atomically(directory / "scores.json", json.dumps(scores, indent=2) + "\n")
    latest, new = directory.with_name(LATEST), directory.with_name(f"{LATEST}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):  # file systems of buckets have no links
        new.unlink(missing_ok=True)
        new.symlink_to(directory.name)
        new.replace(latest)
    return directory


def _folder(workdir: Path, name: str) -> Path:
    """Where outputs go; raises UserError for a link, which may be a stranger's."""
    directory = workdir / "eval" / name.replace("/", "_")
    for folder in (directory.parent, directory):
        if folder.is_symlink():
            raise UserError(
                f"{folder} is a link, which outputs do not follow; remove it, or move what it "
                "leads to there"
            )
    return directory


def _check_place(model: TrainedModel, of: str) -> None:
    """Raises UserError if outputs cannot be written."""
    if distributed.is_first():
        check_can_write(_folder(model.workdir, name_of(model, of)) / "scores.json")


def one_a_line(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def check_task(workdir: Path, config: run_config.Config) -> None:
    """Raises UserError for a run that knows no test sets but its splits."""
    if config.task.name != "seq2seq":
        raise UserError(
            f"{workdir} is a run of the task {config.task.name}, and test sets by file or name are "
            "for seq2seq; give --split alone"
        )


@contextlib.contextmanager
def _told(model: TrainedModel, of: str) -> Iterator[Callable[[int, int], None]]:
    """Prints what is evaluated; gives a function that is told how far that is."""
    steps = ", ".join(map(str, model.steps))
    others = "".join(f" with {other.workdir}" for other in model.others)
    print(f"{model.workdir} at step {steps}{others}; {of}", flush=True)
    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if distributed.is_first():
                if not bars:
                    bars.append(stack.enter_context(Progress(total, initial=0)))
                bars[0].update(done)

        yield progress


def _write(model: TrainedModel, of: str, outputs: Outputs, seconds: float) -> None:
    if not distributed.is_first():
        return
    count = len(outputs.texts["hypotheses"])
    scores = {
        **outputs.scores,
        "split": of,
        "examples": count,
        "seconds": round(seconds, 1),
        **model.provenance(),
        **({"data": data} if (data := _other_data(model, of)) else {}),
    }
    try:
        folder = write_outputs(model.workdir, name_of(model, of), outputs, scores)
    finally:  # the disk may be full by now
        print(outputs.examples)
        print(table(outputs))
    print(f"{count} examples in {seconds:.1f} s; texts and scores in {folder}")


def table(outputs: Outputs) -> str:
    """The scores, a line each."""
    lines = []
    for name, found in outputs.scores.items():
        kind = found["signature"] if "signature" in found else found["definition"]
        lines.append(f"{name:40} {found['score']:6.2f}  {kind}")
    return "\n".join(lines)
