"""Evaluates a trained model on a split or a test set."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.data import hub
from transformer.data.records import Records
from transformer.data.splits import SPLITS
from transformer.data.test_sets import Input, TestSet
from transformer.metrics.scores import kind_of_text
from transformer.metrics.significance import against
from transformer.runs import run_config
from transformer.runs.config_fields import path_fields
from transformer.runs.outputs import Destination, digest
from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel
from transformer.runs.trusted_paths import absolute
from transformer.system import distributed
from transformer.system.buckets import address_of, is_address
from transformer.system.commands import command
from transformer.system.paths import matching, named_files
from transformer.tasks.source_gain import source_scores
from transformer.tasks.task import Outputs, TrainedTask


def check_can_evaluate(model: TrainedModel, splits: Sequence[str]) -> None:
    """Raises UserError for unknown splits and where outputs cannot be written.

    Call it before hours of work, not after.
    """
    model.check_paths()
    kind = model.config.kind
    kind.check_scores(model.task)
    with distributed.first_alone():
        for split in splits:
            kind.content_sha256(model.task.data, split)
    if distributed.is_first():
        for split in splits:
            destination_of(model, split).check()


def next_command(config: run_config.Config, task: TrainedTask, workdir: Path) -> str | None:
    """A command to run next with this finished run; None if there is none."""
    kind = config.kind
    for split in ("test", "validation"):
        with contextlib.suppress(Exception):  # any error: the run is already done
            kind.check_scores(task)
            kind.content_sha256(task.data, split)
            return command("evaluate", f"--workdir={workdir}", f"--split={split}")
    if kind.other_use is None:
        return None
    name, *flags = kind.other_use
    return command(name, f"--workdir={workdir}", *flags)


# --- Evaluating ---------------------------------------------------------------------------


class Other(NamedTuple):
    """Translations of the same sentences by another system, to compare with."""

    name: str
    lines: list[str]


def evaluate(model: TrainedModel, split: str, other: Other | None = None) -> Outputs:
    """Outputs for a split, using the devices of all processes; process 0 prints and writes."""
    model.check_paths()
    return _evaluate(
        *(model, split, {}, other),
        lambda progress: model.task.evaluate(model.params, model.extra, split, progress),
    )


def evaluate_test_set(model: TrainedModel, test: TestSet, other: Other | None = None) -> Outputs:
    """Evaluates, as `evaluate` does, a test set that the config does not name.

    The run's task must have a `score_test_set`.
    """
    data, number = model.task.data, len(test.sources)
    model.task.check_data(data, test.references[0])
    if distributed.is_first():
        destination_of(model, test.name, test.inputs).check()

    def outputs(progress: Callable[[int, int], None]) -> Outputs:
        hypotheses = model.task.translate(
            model.params, model.extra, test.sources, lambda done: progress(done, number)
        )
        found = model.config.kind.score_test_set(kind_of_text(data), test, hypotheses)
        sides = test.sources, test.references[0], hypotheses
        uses = source_scores(model.task, (model.params, model.extra), *sides)
        return found._replace(scores=found.scores | uses)

    return _evaluate(model, test.name, test.inputs, other, outputs)


def _evaluate(
    model: TrainedModel,
    of: str,
    inputs: Mapping[str, Input],
    other: Other | None,
    evaluated: Callable[[Callable[[int, int], None]], Outputs],
) -> Outputs:
    """Prints what is evaluated, shows progress, prints and writes the outputs."""
    steps = ", ".join(map(str, model.chosen.steps))
    others = "".join(f" with {other.workdir}" for other in model.others)
    print(f"{model.workdir} at step {steps}{others}; {of}", flush=True)
    start, first = time.monotonic(), distributed.is_first()
    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if first:
                if not bars:
                    bars.append(stack.enter_context(Progress(total, initial=0)))
                bars[0].update(done)

        outputs = evaluated(progress)
    if not first:
        return outputs
    if other:
        outputs = compared(outputs, other, kind_of_text(model.task.data))
    seconds, count = time.monotonic() - start, len(outputs.texts["hypotheses"])
    scores = {
        **outputs.scores,
        "split": of,
        "examples": count,
        "seconds": round(seconds, 1),
        **model.provenance(),
        **hub.revisions(),
    }
    if other_data := _other_data(model.config.data, model.task.data, of):
        scores["data"] = other_data
    try:
        folder = destination_of(model, of, inputs).write(outputs, scores)
    finally:  # the disk may be full by now
        print(outputs.examples)
        print(table(outputs))
    print(f"{count} examples in {seconds:.1f} s; texts and scores in {folder}")
    return outputs


def compared(outputs: Outputs, other: Other, kind: Mapping[str, Any]) -> Outputs:
    """The outputs, with the comparison in the scores that have one. kind: see kind_of_text."""
    texts, found = outputs.texts, dict(outputs.scores)
    references = [texts[name] for name in texts if name.startswith("references")]
    for name, entry in against(*other, texts["hypotheses"], references, kind).items():
        found[name] = {**found[name], "against": entry}
    return outputs._replace(scores=found)


def table(outputs: Outputs) -> str:
    """The scores, one a line."""
    lines = []
    for name, found in outputs.scores.items():
        kind = found["signature"] if "signature" in found else found["definition"]
        lines.append(f"{name:40} {found['score']:6.2f}  {kind}")
        if "against" in found:
            than = found["against"]
            lines.append(
                f"  {than['difference']:+.2f} against {than['score']:.2f} of {than['other']}, "
                f"p = {than['p_value']:.3f} ({than['test']})"
            )
    return "\n".join(lines)


# --- The folder ---------------------------------------------------------------------------


def destination_of(model: TrainedModel, of: str, inputs: Mapping[str, Input] = {}) -> Destination:
    """The folder is named after the split, then each setting that is not default.

    inputs: the files of a test set.
    """
    parts = [of]
    default = model.chosen.checkpoint if (model.workdir / run_config.EXPORTED).exists() else "best"
    if model.chosen.checkpoint == "average" != default:
        parts.append(f"average-{len(model.chosen.steps)}-at-{model.chosen.steps[-1]}")
    elif model.chosen.checkpoint == "ema" != default:
        parts.append(f"ema-at-{model.chosen.steps[-1]}")
    elif model.chosen.checkpoint != default:
        parts.append(f"step-{model.chosen.steps[-1]}")
    if model.config.decoding:
        settings = _changed(model.config.decoding, model.task.translator.config)
        parts += [f"{field}={value}" for field, value in settings.items()]
    of_data, files = data_beside(model.config.data, model.task.data, of)
    parts += of_data
    if model.others:
        others = "\n".join(address_of(other.workdir.resolve()) for other in model.others)
        parts.append(f"ensemble-{digest(others)}")
    return Destination.of(model.workdir, model.output_dir, "-".join(parts), {**inputs, **files})


def data_beside(usual: Any, asked: Any, of: str) -> tuple[list[str], dict[str, Input]]:
    """Name parts and inputs for data settings that differ from those of the run's config.

    Where the configured path is gone, the data have only moved, and the given path replaces it.
    """
    parts, inputs = [], {}
    for field, given in _other_data(usual, asked, of).items():
        path = absolute(given)
        if _is_there(getattr(usual, field)):
            parts.append(f"{field}={os.path.basename(path)}")
            files = named_files(given, field) if _is_there(given) else []
            are_files = all(map(os.path.isfile, files))
            hashes = Records(files, {}).count_and_hash()[1] if are_files else []
            inputs[field] = Input(path, " ".join(hashes) or None)
    paths = path_fields(type(usual))
    changed = _changed(usual, asked).items()
    return parts + [f"{field}={x}" for field, x in changed if field not in paths], inputs


def _is_there(configured: str | None) -> bool:
    """False if the data that a config names are gone; nothing is brought down from a bucket."""
    names = [configured, *configured.split(",")] if configured else []
    return any(is_address(x) or matching(os.path.expanduser(x.strip())) for x in names)


def _other_data(usual: Any, asked: Any, of: str) -> dict[str, str]:
    """The data paths that differ from those of the run's config, by field.

    Those of other splits are left out, and data.data_dir, which keeps only what can be made or
    downloaded again.
    """
    others = {"data"} | set(SPLITS) - {of}
    paths = path_fields(type(usual))
    return {
        field: given
        for field, given in _changed(usual, asked).items()
        if field in paths and given and field.partition("_")[0] not in others
        if not (path := getattr(usual, field)) or absolute(given) != absolute(path)
    }


def _changed(usual: Any, asked: Any) -> dict[str, Any]:
    """The fields of a config section that have another value, with that value."""
    values = vars(usual)
    return {field: value for field, value in vars(asked).items() if value != values[field]}
