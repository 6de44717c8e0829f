"""A trained model on a split: what it makes of it, written to the work directory."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically
from transformer.tasks.task import Outputs, find_task


def check_can_evaluate(model: TrainedModel, splits: Sequence[str]) -> None:
    """Raises UserError for splits that are not there, and where outputs cannot be written.

    Better before hours of work than after.
    """
    model.check_paths()
    with distributed.first_alone():
        for split in splits:
            find_task(model.config.task.name).content_sha256(model.task.data, split)
    if distributed.is_first():
        for split in splits:
            _check_folder(_folder(model, split))


def evaluate(model: TrainedModel, split: str) -> Outputs:
    """Outputs for a split, by the devices of all processes; process 0 prints and writes them."""
    model.check_paths()
    steps = ", ".join(map(str, model.steps))
    others = "".join(f" with {other.workdir}" for other in model.others)
    print(f"{model.workdir} at step {steps}{others}; {split}", flush=True)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if distributed.is_first():
                if not bars:
                    bars.append(stack.enter_context(Progress(total, initial=0)))
                bars[0].update(done)

        outputs = model.task.evaluate(model.params, model.extra, split, progress)
    seconds = time.monotonic() - start
    if not distributed.is_first():
        return outputs
    count = len(outputs.texts["hypotheses"])
    scores = {
        **outputs.scores,
        "split": split,
        "examples": count,
        "seconds": round(seconds, 1),
        **model.provenance(),
    }
    directory = _folder(model, split)
    try:
        write_outputs(directory, outputs, scores)
    finally:  # the disk may be full by now
        print(outputs.examples)
        for name, score in outputs.scores.items():
            kind = score["signature"] if "signature" in score else score["definition"]
            print(f"{name:40} {score['score']:6.2f}  {kind}")
    print(f"{count} examples in {seconds:.1f} s; texts and scores in {directory}")
    return outputs


def write_outputs(directory: Path, outputs: Outputs, scores: dict[str, Any]) -> None:
    """The texts, one example a line, and scores.json last."""
    _check_folder(directory)
    for text, lines in outputs.texts.items():
        write_atomically(directory / f"{text}.txt", one_a_line(lines))
    write_atomically(directory / "scores.json", json.dumps(scores, indent=2) + "\n")


def _folder(model: TrainedModel, split: str) -> Path:
    name = f"{split}-ensemble" if model.others else split
    return model.workdir / "eval" / name.replace("/", "_")


def _check_folder(directory: Path) -> None:
    """Raises UserError for a place of outputs that is a stranger's link, or cannot be written."""
    for folder in (directory.parent, directory):
        if folder.is_symlink():
            raise UserError(
                f"{folder} is a link, which outputs do not follow; remove it, or move what it "
                "leads to there"
            )
    check_can_write(directory / "scores.json")


def one_a_line(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
