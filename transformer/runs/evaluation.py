"""Evaluates a trained model on a split or a test set, and writes the outputs."""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.data.test_sets import Input, TestSet
from transformer.data.text_files import count_and_hash
from transformer.metrics.scores import kind_of_text
from transformer.runs import run_config
from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel
from transformer.runs.trusted_paths import absolute
from transformer.system import distributed
from transformer.system.commands import command
from transformer.system.errors import UserError
from transformer.system.files import (
    check_can_write,
    leftovers_of,
    remove_leftovers,
    temporary_beside,
    write_atomically,
)
from transformer.system.reading import MISSING, checked, read_json
from transformer.tasks import seq2seq
from transformer.tasks.task import Outputs, TrainedTask, find_task

LATEST = "latest"  # below WORKDIR/eval: a link to the folder written last
DIGITS = 8  # of the hashes in folder names


def check_can_evaluate(model: TrainedModel, splits: Sequence[str]) -> None:
    """Raises UserError for unknown splits and where outputs cannot be written.

    Call it before hours of work, not after.
    """
    model.check_paths()
    kind = find_task(model.config.task.name)
    kind.check_scores(model.task)
    with distributed.first_alone():
        for split in splits:
            kind.content_sha256(model.task.data, split)
    for split in splits:
        _check_place(model, split)


def next_command(config: run_config.Config, task: TrainedTask, workdir: Path) -> str | None:
    """A command to run next with this finished run; None if there is none."""
    kind = find_task(config.task.name)
    for split in ("test", "validation"):
        with contextlib.suppress(Exception):  # any error: the run is already done
            kind.check_scores(task)
            kind.content_sha256(task.data, split)
            return command("evaluate", f"--workdir={workdir}", f"--split={split}")
    if kind.other_use is None:
        return None
    name, *flags = kind.other_use
    return command(name, f"--workdir={workdir}", *flags)


def evaluate(model: TrainedModel, split: str) -> Outputs:
    """Outputs for a split, using the devices of all processes; process 0 prints and writes."""
    model.check_paths()
    with _told(model, split) as progress:
        start = time.monotonic()
        outputs = model.task.evaluate(model.params, model.extra, split, progress)
    _write(model, split, outputs, time.monotonic() - start)
    return outputs


def evaluate_test_set(model: TrainedModel, test: TestSet) -> Outputs:
    """Evaluates, as `evaluate` does, a test set that the config does not name."""
    check_task(model.workdir, model.config)
    data = model.task.data
    model.task.check_data(data, test.references[0])
    _check_place(model, test.name, test.inputs)
    with _told(model, test.name) as progress:
        start = time.monotonic()
        hypotheses = model.task.translate(
            model.params, model.extra, test.sources, lambda done: progress(done, len(test.sources))
        )
    outputs = seq2seq.score_test_set(kind_of_text(data), test, hypotheses)
    _write(model, test.name, outputs, time.monotonic() - start, test.inputs)
    return outputs


def name_of(model: TrainedModel, of: str) -> str:
    """The name of a folder below WORKDIR/eval: the split, then each setting that is not default."""
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
    parts += parts_of_data(model.config.data, model.task.data, of)
    if model.others:
        others = "\n".join(str(other.workdir.resolve()) for other in model.others)
        parts.append(f"ensemble-{_digest(others)}")
    return "-".join(parts)


def parts_of_data(usual: Any, asked: Any, of: str) -> list[str]:
    """Name parts for data and BLEU tokenizer that differ from the run's own."""
    places = _places_beside(usual, asked, of).items()
    named = [f"{field}={os.path.basename(place)}" for field, place in places]
    tokenizers = [getattr(data, "bleu_tokenizer", None) for data in (usual, asked)]
    return named + [f"bleu_tokenizer={tokenizers[1]}"] * (tokenizers[0] != tokenizers[1])


def inputs_of_data(usual: Any, asked: Any, of: str) -> dict[str, Input]:
    """The data given in place of those of the run's config, by field."""
    return {
        field: Input(place, count_and_hash(place)[1] if os.path.isfile(place) else None)
        for field, place in _places_beside(usual, asked, of).items()
    }


def _places_beside(usual: Any, asked: Any, of: str) -> dict[str, str]:
    """The given paths whose configured counterparts still exist, by field.

    Where the configured path is gone, the data have only moved, and the given path replaces it.
    """
    return {
        field: absolute(given)
        for field, given in _other_data(usual, asked, of).items()
        if (configured := getattr(usual, field)) and os.path.exists(absolute(configured))
    }


def _other_data(usual: Any, asked: Any, of: str) -> dict[str, str]:
    """The data paths that differ from those of the run's config, by field.

    data.data_dir is left out: it keeps only what can be made or downloaded again.
    """
    fields = ("raw_dir", "test_file") if of == "test" else ("raw_dir",)
    pairs = {field: (getattr(usual, field, None), getattr(asked, field, None)) for field in fields}
    return {
        field: given
        for field, (configured, given) in pairs.items()
        if given and not (configured and absolute(given) == absolute(configured))
    }


def write_outputs(
    place: Path,
    name: str,
    outputs: Outputs,
    scores: dict[str, Any],
    inputs: Mapping[str, Input] = {},
) -> Path:
    """Writes the texts to PLACE/<name>/, one example a line, and scores.json last.

    place: WORKDIR/eval, or --output_dir. inputs: the inputs scored beside the run's own data. If
    the folder has scores of other inputs, a hash of these is added to its name.
    """
    directory = _folder(place, name, inputs)
    names = [*(f"{text}.txt" for text in outputs.texts), *outputs.files, "scores.json"]
    for path in (*(directory / file for file in names), directory.with_name(LATEST)):
        remove_leftovers(leftovers_of(path))  # only ours: --output_dir may be anywhere
    if inputs:
        scores = {**scores, "inputs": {role: one._asdict() for role, one in inputs.items()}}
    for text, lines in outputs.texts.items():
        write_atomically(directory / f"{text}.txt", one_a_line(lines))
    for file, content in outputs.files.items():
        write_atomically(directory / file, content)
    write_atomically(directory / "scores.json", json.dumps(scores, indent=2) + "\n")
    latest, new = directory.with_name(LATEST), temporary_beside(directory.with_name(LATEST))
    with contextlib.suppress(OSError):  # bucket file systems have no links
        new.unlink(missing_ok=True)
        new.symlink_to(directory.name)
        new.replace(latest)
    return directory


def place_of(workdir: Path | None, output_dir: Path | None) -> Path | None:
    """The folder of all outputs; raises UserError for a link in a stranger's work directory."""
    if output_dir or not workdir:
        return output_dir
    _refuse_link(place := workdir / "eval")
    return place


def _folder(place: Path, name: str, inputs: Mapping[str, Input]) -> Path:
    """The folder for outputs; other inputs whose files share a name get a folder of their own."""
    directory = place / name.replace("/", "_")
    own = {role: one.path or one.sha256 for role, one in inputs.items()}
    if _inputs_in(directory) not in (None, own):
        directory = directory.with_name(
            f"{directory.name}-{_digest(json.dumps(own, sort_keys=True))}"
        )
    _refuse_link(directory)
    return directory


def _inputs_in(directory: Path) -> dict[str, str] | None:
    """The inputs behind the scores in a folder; None if there are none that can be read."""
    try:
        scores = read_json(directory / "scores.json", directory, dict[str, Any])
        inputs = checked(scores.get("inputs", {}), dict[str, Input])
        return {role: one["path"] or one["sha256"] for role, one in inputs.items()}
    except (*MISSING, ValueError, UserError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link, which outputs do not follow; remove it, or move what it leads "
            "to there, or give another place with --output_dir"
        )


def check_place(place: Path, name: str, inputs: Mapping[str, Input]) -> None:
    """Raises UserError if outputs cannot be written."""
    folder = _folder(place, name, inputs)
    try:
        check_can_write(folder / "scores.json")
    except UserError as error:
        raise UserError(f"{error} with --output_dir") from error


def _check_place(model: TrainedModel, of: str, inputs: Mapping[str, Input] = {}) -> None:
    if distributed.is_first():
        place = place_of(model.workdir, model.output_dir)
        check_place(place, name_of(model, of), _inputs(model, of, inputs))


def _inputs(model: TrainedModel, of: str, given: Mapping[str, Input]) -> dict[str, Input]:
    """Everything that distinguishes scores of the same name: see write_outputs."""
    runs = {"workdir": Input(absolute(str(model.workdir)))} if model.output_dir else {}
    return {**given, **inputs_of_data(model.config.data, model.task.data, of), **runs}


def one_a_line(lines: Sequence[str]) -> str:
    return "".join(f"{line.replace(chr(10), ' ')}\n" for line in lines)


def check_task(workdir: Path, config: run_config.Config) -> None:
    """Raises UserError for a run whose task has no test sets besides its splits, and no BLEU."""
    if config.task.name != "seq2seq":
        raise UserError(
            f"{workdir} is a run of the task {config.task.name}, and test sets by file or name "
            "and tokenizers of BLEU are for seq2seq; give --split alone"
        )


@contextlib.contextmanager
def _told(model: TrainedModel, of: str) -> Iterator[Callable[[int, int], None]]:
    """Prints what is evaluated; yields a function that reports progress."""
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


def _write(
    model: TrainedModel,
    of: str,
    outputs: Outputs,
    seconds: float,
    inputs: Mapping[str, Input] = {},
) -> None:
    if not distributed.is_first():
        return
    count, data = len(outputs.texts["hypotheses"]), (model.config.data, model.task.data)
    scores = {
        **outputs.scores,
        "split": of,
        "examples": count,
        "seconds": round(seconds, 1),
        **model.provenance(),
        **({"data": other} if (other := _other_data(*data, of)) else {}),
    }
    try:
        place, name = place_of(model.workdir, model.output_dir), name_of(model, of)
        folder = write_outputs(place, name, outputs, scores, _inputs(model, of, inputs))
    finally:  # the disk may be full by now
        print(outputs.examples)
        print(table(outputs))
    print(f"{count} examples in {seconds:.1f} s; texts and scores in {folder}")


def table(outputs: Outputs) -> str:
    """The scores, one a line."""
    lines = []
    for name, found in outputs.scores.items():
        kind = found["signature"] if "signature" in found else found["definition"]
        lines.append(f"{name:40} {found['score']:6.2f}  {kind}")
    return "\n".join(lines)
