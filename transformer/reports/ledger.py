"""The results ledger: a JSON file for each run.

    python evaluate.py --workdir=runs/tiny --record=results/multi30k_tiny-0.json
    python evaluate.py --workdir=runs/tiny --verify=results/multi30k_tiny-0.json
    python -m transformer.reports.results_page       makes RESULTS.md of them

A result says what was run, with what, on what, and what came of it; the outputs lie beside it in
a folder of its name. It does not say where files lay. For an ensemble the first run stands where a
single one would, and the others are in `ensemble_with`.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.models.functional import num_params
from transformer.runs import history, provenance
from transformer.runs.evaluation import evaluate, one_a_line
from transformer.runs.experiment import EXPORTED
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.tasks.task import Outputs, Task, find_task

# Scores of the same checkpoint on other hardware differ by less: some outputs come out in other
# words. Of the same outputs they are as printed.
TOLERANCE, EXACT = 0.2, 0.005
_VALIDATION = "eval/validation/"
_TYPES_IN_RUN = {
    **dict.fromkeys(("config", "overrides"), dict),
    **dict.fromkeys(("starts", "checkpoint_steps"), list),
    **dict.fromkeys(("seed", "steps", "target_tokens"), int),
    "config_file": str,
    "training_seconds": (int, float),
}
_TYPES = {
    **dict.fromkeys(("splits", "candidates", "curve", "length_penalty", "data_sha256"), dict),
    **dict.fromkeys(("parameters", "beam_size"), int),
    "tokenizer_sha256": list,
    "checkpoint": str,
}
_TYPES_IN_SPLIT = {
    **dict.fromkeys(("name", "text_sha256", "hypotheses_sha256"), str),
    "scores": dict,
    "sentences": int,
}

# --- Recording ----------------------------------------------------------------------------


def record(
    path: Path,
    splits: Sequence[str],
    restore: Callable[..., TrainedModel],
    checkpoint: str | None,
    average_last: int | None,
) -> None:
    """Chooses a checkpoint on the validation split, evaluates the others, writes the result.

    restore: gives a model; checkpoint and average_last say which. Without a checkpoint, the best
      and the average are tried on validation, and the better one is used.
    """
    # 1. All that can be wrong, before hours of work.
    models = {
        name: restore(
            checkpoint=name, average_last=average_last if checkpoint or name == "average" else None
        )
        for name in ([checkpoint] if checkpoint else ["best", "average"])
    }
    model = next(iter(models.values()))
    tested = [split for split in splits if split != "validation"]
    _check_can_be_recorded(path, model, ["validation", *tested])
    task = find_task(model.config.task.name)
    with distributed.first_alone():
        hashes = _data_hashes(model)
        for split in tested:
            task.content_sha256(model.task.data, split)
    for other in model.others:
        if _data_hashes(other) != hashes:
            raise UserError(
                f"{other.workdir} and {model.workdir} were trained on different text; a result is "
                "of an ensemble on the same"
            )

    # 2. The choice.
    metric = task.metrics[task.main_metric]
    validation = {name: evaluate(model, "validation") for name, model in models.items()}
    candidates = distributed.from_first(
        lambda: {n: x.scores[task.main_metric]["score"] for n, x in validation.items()}
    )
    chosen = (min if metric.better == "lower" else max)(candidates, key=candidates.__getitem__)
    print(f"chosen by validation {task.main_metric}: {chosen}, of {candidates}", flush=True)

    # 3. The other splits, with that.
    outputs = {"validation": validation[chosen]}
    outputs |= {split: evaluate(models[chosen], split) for split in tested}
    if distributed.is_first():
        result = new_result(models[chosen], candidates, outputs, hashes)
        write(path, result, outputs)
        print(f"written  {path}; python -m transformer.reports.results_page makes RESULTS.md of it")
        starts = [start for run in all_runs(result) for start in run["starts"]]
        for commit in {start["commit"] for start in starts}:
            if not re.fullmatch("[0-9a-f]+", commit):
                print(f"warning: the commit is {commit}; others need one that they can have")


def _check_can_be_recorded(path: Path, model: TrainedModel, splits: Collection[str]) -> None:
    """Raises UserError for what would prove nothing, or would take the place of other files."""
    if path.suffix != ".json":
        raise UserError(f"--record={path}: give a file name that ends in .json")
    folder = path.with_suffix("")
    files = {_hypotheses_file(path, split) for split in [*splits, *_earlier_splits(path)]}
    found = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    if others := sorted(str(f) for f in found if f not in files and f.suffix != ".tmp"):
        raise UserError(
            f"--record={path} would put outputs into {folder}, and {others[0]} is no such file; "
            "move it, or give another name"
        )
    for run in [model, *model.others]:
        if (run.workdir / EXPORTED).exists():
            raise UserError(
                f"{run.workdir} was exported; record the training run that it comes from"
            )
        starts = provenance.starts(run.workdir)
        if not starts or starts[0]["step"]:
            raise UserError(
                f"{run.workdir}/starts.jsonl does not say how this run was begun; it cannot be "
                "recorded"
            )
        if run.config.training.init_from and not history.is_known(provenance.origin(run.workdir)):
            raise UserError(
                f"{run.workdir} began with the parameters of another run, and "
                f"{provenance.ORIGIN} does not have that from its beginning to its end; only what "
                "can be trained again is recorded"
            )
        steps = run.config.training.steps
        if run.last_step < steps and not run.stopped_early:
            raise UserError(
                f"{run.workdir} is at step {run.last_step} of {steps}; train it to the end, or say "
                f"that this is the end: train.py with --config.training.steps={run.last_step}"
            )


def new_result(
    model: TrainedModel,
    candidates: Mapping[str, float],
    outputs: Mapping[str, Outputs],
    data_sha256: Mapping[str, str],
) -> dict[str, Any]:
    """What the ledger keeps of a run, or of an ensemble of runs.

    candidates: validation scores of those checkpoints that the model's was chosen from. outputs:
    by split, validation among them. data_sha256: of the training and the validation data.
    """
    data, task = model.task.data, find_task(model.config.task.name)
    of_workdirs = "config_sha256", "ensemble_with"
    return {
        **history.run_of(model),
        **(
            {"ensemble_with": [history.run_of(other) for other in model.others]}
            if model.others
            else {}
        ),
        **{k: v for k, v in model.provenance().items() if k not in of_workdirs},
        "data_sha256": dict(data_sha256),
        "checkpoint": model.checkpoint,
        "parameters": num_params(model.params),
        "candidates": dict(candidates),
        "splits": {
            split: {
                "name": getattr(data, f"{split}_split", split),
                "scores": found.scores,
                "sentences": len(found.texts["hypotheses"]),
                "text_sha256": task.content_sha256(data, split),
                "hypotheses_sha256": hashlib.sha256(_text(found)).hexdigest(),
            }
            for split, found in outputs.items()
        },
        "curve": curve([] if model.others else history.metrics_of(model), task.metrics),
    }


def curve(
    metrics: Iterable[Mapping[str, Any]], names: Iterable[str]
) -> dict[str, list[tuple[int, float]]]:
    """Validation metrics by step."""
    lines = list(metrics)
    return {
        name: [
            (line["step"], round(line[key], 4))
            for line in lines
            if key in line and line[key] is not None
        ]
        for name in names
        for key in [f"{_VALIDATION}{name}"]
    }


def write(path: Path, result: Mapping[str, Any], outputs: Mapping[str, Outputs]) -> None:
    """The outputs, one example a line, and then the result itself."""
    earlier = {_hypotheses_file(path, split) for split in _earlier_splits(path)}
    for split, found in outputs.items():
        write_atomically(_hypotheses_file(path, split), _text(found))
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for file in earlier - {_hypotheses_file(path, split) for split in outputs}:
        file.unlink(missing_ok=True)


def _data_hashes(model: TrainedModel) -> dict[str, str]:
    """Of what a run was trained and validated on."""
    task = find_task(model.config.task.name)
    return {split: task.content_sha256(model.task.data, split) for split in ("train", "validation")}


def _earlier_splits(path: Path) -> Collection[str]:
    """The splits of the result that `path` holds; raises UserError if it holds something else."""
    return read(path)["splits"].keys() if path.exists() else ()


def _text(outputs: Outputs) -> bytes:
    return one_a_line(outputs.texts["hypotheses"]).encode()


def _hypotheses_file(path: Path, split: str) -> Path:
    return path.with_suffix("") / f"{split.replace('/', '_')}.txt"


# --- Reading ------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """A result; raises UserError for another file."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        _check_types(result, _TYPES)
        for run in all_runs(result):
            _check_types(run, _TYPES_IN_RUN)
        for entry in result["splits"].values():
            _check_types(entry, _TYPES_IN_SPLIT)
            for score in entry["scores"].values():
                _check_types(score, {"score": (int, float)})
    except OSError as error:
        raise UserError(f"cannot read the result {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is no result of this ledger; give a JSON file that --record has written"
        ) from error
    return result


def runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The one run of a result, or those of an ensemble."""
    return [result, *result.get("ensemble_with", ())]


def all_runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All that was trained for a result: what several runs began with, once."""
    found = []
    for run in runs(result):
        found += [one for one in history.lineage(run) if one not in found]
    return found


def _check_types(entry: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for name, kind in types.items():
        if not isinstance(entry[name], kind):
            raise TypeError(f"{name} is {entry[name]!r}")


# --- Verifying ----------------------------------------------------------------------------


def verify(
    path: Path,
    restore: Callable[..., TrainedModel] | None,
    data_dir: str | None,
    raw_dir: str | None,
) -> bool:
    """Compares the scores of a result with those of now; prints and says whether they agree.

    restore: gives the run's model, which is evaluated again; None scores the saved outputs again.
    """
    recorded = read(path)
    splits = recorded["splits"]
    task = find_task(recorded["config"].get("task.name", "seq2seq"))  # the first ones have no name
    if restore:
        checkpoint, steps = recorded["checkpoint"], recorded["checkpoint_steps"]
        model = restore(
            checkpoint=checkpoint,
            average_last=len(steps) if checkpoint == "average" else None,
            beam_size=recorded["beam_size"],
            length_penalty=recorded["length_penalty"]["alpha"],
        )
        check_same_runs(path, recorded, model)
        data, tolerance = model.task.data, TOLERANCE
        found = {split: evaluate(model, split).scores for split in splits}
    else:
        data, tolerance = _recorded_data(path, recorded, task, data_dir, raw_dir), EXACT
        hypotheses = {split: saved_hypotheses(path, recorded, split) for split in splits}
        found = {split: task.rescore(data, split, hypotheses[split]) for split in splits}
    for split, entry in splits.items():
        if task.content_sha256(data, split) != entry["text_sha256"]:
            raise UserError(
                f"the {split} split is another text than that of {path}; give the same data with "
                "--data_dir or --raw_dir"
            )
    if not distributed.is_first():
        return True
    lines = disagreements(recorded, found, tolerance)
    for line in lines:
        print(f"differs  {line}")
    count = sum(len(entry["scores"]) for entry in splits.values())
    print(f"{path}: {count - len(lines)} of {count} scores agree to within {tolerance}", flush=True)
    return not lines


def check_same_runs(path: Path, recorded: Mapping[str, Any], model: TrainedModel) -> None:
    """Raises UserError if a work directory is not, or is no longer, what was recorded."""
    expected_runs, given = runs(recorded), [model, *model.others]
    if len(given) != len(expected_runs):
        raise UserError(
            f"work directories given: {len(given)}, runs of {path}: {len(expected_runs)}; give the "
            "first as --workdir, and if there are more, these as --ensemble"
        )
    for one, run in zip(given, expected_runs, strict=True):
        expected = {**run["config"], "what it began with": _beginning(run.get("init_from"))}
        expected |= {"checkpoint_steps": run["checkpoint_steps"]}
        expected |= {"tokenizer_sha256": recorded["tokenizer_sha256"]}
        found = history.recorded_fields(one.config) | one.provenance()
        found |= {"what it began with": _beginning(provenance.origin(one.workdir))}
        for name, value in expected.items():
            if found.get(name) != value:
                raise UserError(
                    f"{one.workdir} is not the run of {path}: {name} is {found.get(name)!r} and "
                    f"was {value!r}; give the work directory of that run in its place"
                )


def _beginning(origin: Mapping[str, Any] | None) -> list[Any] | None:
    # Not the hash of the parameters: on another machine they come out a little different.
    return origin and [
        [before["checkpoint"], before["checkpoint_steps"], before["config"]]
        for before in history.lineage(origin)
    ]


def _recorded_data(
    path: Path, result: Mapping[str, Any], task: Task, data_dir: str | None, raw_dir: str | None
) -> Any:
    """The data section of a result; where the files lie is not recorded."""
    recorded = {
        name.removeprefix("data."): value
        for name, value in result["config"].items()
        if name.startswith("data.")
    }
    if recorded.get("dataset") is None:
        raise UserError(f"{path} is of text files; give the --workdir of its run")
    places = {"data_dir": data_dir or "~/tensorflow_datasets", "raw_dir": raw_dir}
    section = task.sections["data"]
    fields = dict.fromkeys(field.name for field in dataclasses.fields(section))
    return section(**fields | {k: v for k, v in recorded.items() if k in fields} | places)


def saved_hypotheses(path: Path, result: Mapping[str, Any], split: str) -> list[str]:
    """The outputs beside a result; raises UserError if they are not those it is about."""
    file = _hypotheses_file(path, split)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != result["splits"][split]["hypotheses_sha256"]:
        raise UserError(f"{file} has been changed since {path} was written; restore it")
    return content.decode().removesuffix("\n").split("\n")


def disagreements(
    recorded: Mapping[str, Any], found: Mapping[str, Mapping[str, dict]], tolerance: float
) -> list[str]:
    """Where the scores found, by split and metric, are not those recorded, in words."""
    lines = []
    for split, entry in recorded["splits"].items():
        for name, score in entry["scores"].items():
            was, now = score["score"], found[split].get(name, {"score": math.nan})["score"]
            if not abs(was - now) <= tolerance:
                lines.append(f"{split} {name}: recorded {was:.2f}, now {now:.2f}")
    return lines
