"""A trained model on a split: what it makes of it, written to the work directory."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.files import write_atomically
from transformer.tasks.task import Outputs


def evaluate(model: TrainedModel, split: str) -> Outputs:
    """Outputs for a split, by the devices of all processes; process 0 prints and writes them."""
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
    name = f"{split}-ensemble" if model.others else split
    directory = write_outputs(model.workdir, name, outputs, scores)
    print(outputs.examples)
    for name, score in outputs.scores.items():
        kind = score["signature"] if "signature" in score else score["definition"]
        print(f"{name:40} {score['score']:6.2f}  {kind}")
    print(f"{count} examples in {seconds:.1f} s; texts and scores in {directory}")
    return outputs


def write_outputs(workdir: Path, name: str, outputs: Outputs, scores: dict[str, Any]) -> Path:
    """WORKDIR/eval/<name>/: the texts, one example a line, and scores.json last."""
    directory = workdir / "eval" / name.replace("/", "_")
    directory.mkdir(parents=True, exist_ok=True)
    for text, lines in outputs.texts.items():
        write_atomically(directory / f"{text}.txt", one_a_line(lines))
    for file, content in outputs.files.items():
        write_atomically(directory / file, content)
    write_atomically(directory / "scores.json", json.dumps(scores, indent=2) + "\n")
    return directory


def one_a_line(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
