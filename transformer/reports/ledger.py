"""The ledger of results: a JSON file for each run, or for several runs that decode together.

    python evaluate.py --workdir=runs/tiny --record=results/multi30k_tiny-0.json
    python evaluate.py --workdir=runs/tiny --verify=results/multi30k_tiny-0.json
    python benchmarks/results_page.py                makes RESULTS.md of them

A result records the command, the code, the data and the scores of a run, but not the paths of its
files. The folder of the same name has the outputs, compressed; `zless` shows them. The result of an
ensemble is that of its first run, and `ensemble_with` has the other runs.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.data.sources import DataConfig, open_source
from transformer.models.functional import num_params
from transformer.reports.results import Result, checkpoint_flags, search_flags
from transformer.runs import history, provenance
from transformer.runs.config_fields import check_types
from transformer.runs.evaluation import check_can_evaluate, evaluate
from transformer.runs.history import Run
from transformer.runs.outputs import one_a_line
from transformer.runs.renamed_fields import renew
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.commands import ROOT
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named
from transformer.system.paths import cannot_read
from transformer.system.reading import MOST, MOST_JSON, parse_json, read_plain
from transformer.tasks.pair_training import Texts
from transformer.tasks.task import Outputs, Task, find_task

# How far scores may be from the recorded ones. On other hardware the same checkpoint may word some
# outputs differently. Saved outputs have the same scores, up to the printed digits.
TOLERANCE, EXACT = 0.2, 0.005

# --- Recording ----------------------------------------------------------------------------


def record(
    path: Path,
    splits: Sequence[str],
    restore: Callable[..., TrainedModel],
    checkpoint: str | None,
    average_last: int | None,
) -> None:
    """Chooses a checkpoint on the validation split, evaluates the other splits, writes the result.

    restore: returns a model; checkpoint and average_last choose it. Without a checkpoint, the best
      and the average are tried on validation, and the better one is used.
    """
    # 1. Find all mistakes before hours of work.
    models = {
        name: restore(
            checkpoint=name, average_last=average_last if checkpoint or name == "average" else None
        )
        for name in ([checkpoint] if checkpoint else ["best", "average"])
    }
    model = next(iter(models.values()))
    tested = [split for split in splits if split != "validation"]
    _check_files(path, ["validation", *tested])
    for run in [model, *model.others]:
        history.check_can_be_repeated(run)
    task = model.config.kind
    for one in (model, *model.others):
        one.check_paths()
    check_can_evaluate(model, ["validation", *tested])
    with distributed.first_alone():
        hashes = _hashes(task, model, ["train", "validation", *tested])
    for other in model.others:
        if not _hashes(task, other, ["train", "validation"]).items() <= hashes.items():
            raise UserError(
                f"{other.workdir} and {model.workdir} were trained on different text; a result is "
                "of an ensemble on the same"
            )

    # 2. Choose the checkpoint.
    validation = {name: evaluate(model, "validation") for name, model in models.items()}
    candidates = distributed.from_first(
        lambda: {n: x.scores[task.main_metric]["score"] for n, x in validation.items()}
    )
    best = min if task.metrics[task.main_metric].better == "lower" else max
    chosen = best(candidates, key=candidates.__getitem__)
    print(f"chosen by validation {task.main_metric}: {chosen}, of {candidates}", flush=True)

    # 3. Evaluate the other splits with it.
    outputs = {"validation": validation[chosen]}
    outputs |= {split: evaluate(models[chosen], split) for split in tested}
    if not distributed.is_first():
        return
    result = new_result(models[chosen], candidates, outputs, hashes)
    write(path, result, outputs)
    print(f"written  {path}")
    if path.resolve().parent == ROOT / "results":  # the folder of the results page
        print("python benchmarks/results_page.py makes RESULTS.md of it")
    for commit in sorted({start["commit"] for run in all_runs(result) for start in run["starts"]}):
        if not re.fullmatch("[0-9a-f]+", commit):
            print(f"warning: the commit is {commit}; nobody else can check that out")


def new_result(
    model: TrainedModel,
    candidates: Mapping[str, float],
    outputs: Mapping[str, Outputs],
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """The ledger's entry for a run, or for an ensemble of runs.

    candidates: validation scores of the checkpoints among which the model's was chosen. outputs: by
    split, validation among them. hashes: of the examples of these splits, and of "train".
    """
    result = {
        **model.provenance(),
        **history.run_of(model),
        "data_sha256": {split: hashes[split] for split in ("train", "validation")},
        "checkpoint": model.chosen.checkpoint,
        "parameters": num_params(model.params),
        "candidates": dict(candidates),
        "splits": {
            split: {
                "name": getattr(model.config.data, f"{split}_split", split),
                "scores": found.scores,
                "examples": len(found.texts["hypotheses"]),
                "text_sha256": hashes[split],
                "hypotheses_sha256": hashlib.sha256(_text(found)).hexdigest(),
            }
            for split, found in outputs.items()
        },
        "curve": {} if model.others else history.validation_curves(model),
    }
    del result["config_sha256"]  # it covers folder names
    if model.others:
        result["ensemble_with"] = [history.run_of(other) for other in model.others]
    return result


def write(path: Path, result: Result, outputs: Mapping[str, Outputs]) -> None:
    """Writes the outputs, one example a line, and then the result itself."""
    no_more = _earlier_files(path) - {_outputs_file(path, split) for split in outputs}
    for split, found in outputs.items():
        write_named(_outputs_file(path, split), gzip.compress(_text(found), mtime=0))
    write_named(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for file in no_more:
        file.unlink(missing_ok=True)


def _check_files(path: Path, splits: Sequence[str]) -> None:
    """Raises UserError if a result of these splits would overwrite other files."""
    if path.suffix != ".json":
        raise UserError(f"--record={path}: give a file name that ends in .json")
    if path.exists() and not path.is_file():
        raise UserError(f"--record={path} is no file; name a new one, or an earlier result")
    coming = [path, *(_outputs_file(path, split) for split in splits)]
    own = _earlier_files(path) | set(coming)
    folder = path.with_suffix("")
    found = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    if others := sorted(str(file) for file in found if file not in own and file.suffix != ".tmp"):
        raise UserError(
            f"--record={path} would put outputs into {folder}, and {others[0]} is no such file; "
            "move it, or give another name"
        )
    for file in coming:
        check_can_write(file)


def _earlier_files(path: Path) -> set[Path]:
    """The outputs of the result at `path`; raises UserError if another file is there."""
    splits = read(path)["splits"] if path.exists() else ()
    return {_outputs_file(path, split) for split in splits}


def _hashes(task: Task, model: TrainedModel, splits: Sequence[str]) -> dict[str, str]:
    return {split: task.content_sha256(model.task.data, split) for split in splits}


def _text(outputs: Outputs) -> bytes:
    return one_a_line(outputs.texts["hypotheses"]).encode()


def _outputs_file(path: Path, split: str) -> Path:
    return path.with_suffix("") / f"{split.replace('/', '_')}.txt.gz"


# --- Reading ------------------------------------------------------------------------------


def read(path: Path) -> Result:
    """A result; raises UserError for another file."""
    try:
        result = parse_json(read_plain(path, None, MOST_JSON), Result)
        if reason := _contradiction(result):
            raise ValueError(reason)
        for run in runs(result):
            renew(run, "config")
    except OSError as error:
        raise cannot_read(path, error, kind="the result ") from error
    except ValueError as error:
        raise UserError(
            f"{path} is no result of this ledger ({error}); give a JSON file that --record has "
            "written"
        ) from error
    return result


def _contradiction(result: Result) -> str | None:
    """An inconsistency in a result that is valid by its type; None if there is none."""
    if "task.name" not in result["config"]:
        return "config.task.name is missing"
    if "beam_size" in result and "length_penalty" not in result:
        return "length_penalty is missing"
    if any(len(point) != 2 for curve in result["curve"].values() for point in curve):
        return "a point of a curve is no pair"
    if not all(run["starts"] and run["checkpoint_steps"] for run in all_runs(result)):
        return "starts or checkpoint_steps are empty"
    if len({len(run["checkpoint_steps"]) for run in runs(result)}) > 1:
        return "the runs have different numbers of checkpoints"
    return None


def runs(result: Result) -> list[Run]:
    """The one run of a result, or those of an ensemble."""
    return [result, *result.get("ensemble_with", ())]


def all_runs(result: Result) -> list[Run]:
    """All runs trained for a result; a run that several began with counts once."""
    found = []
    for run in runs(result):
        found += [one for one in history.lineage(run) if one not in found]
    return found


def saved_outputs(path: Path, result: Result, split: str) -> list[str]:
    """The outputs saved beside a result; raises UserError if they are not the recorded ones."""
    file, entry = _outputs_file(path, split), result["splits"][split]
    try:
        packed = gzip.GzipFile(fileobj=io.BytesIO(read_plain(file, path.parent)))
        content = packed.read(MOST)  # a stranger's may be endless
    except (gzip.BadGzipFile, EOFError, zlib.error):
        content = b""
    except OSError as error:
        raise cannot_read(file, error) from error
    lines = content.decode(errors="replace").removesuffix("\n").split("\n")
    is_as_it_was = hashlib.sha256(content).hexdigest() == entry["hypotheses_sha256"]
    if not is_as_it_was or len(lines) != entry["examples"]:
        raise UserError(f"{file} has been changed since {path} was written; restore it")
    return lines


def translations(
    path: Path, split: str, data_dir: str | None, raw_dir: str | None
) -> tuple[DataConfig, Texts]:
    """The data section of a translation result, and the texts of a split.

    Raises UserError for another task, a split that was not recorded, or another text.
    """
    result = read(path)
    if (name := result["config"]["task.name"]) != "seq2seq":
        raise UserError(f"{path} is of the task {name}; give results of translations")
    if split not in result["splits"]:
        raise UserError(f"{path} has no split {split!r}; it has: {', '.join(result['splits'])}")
    task = find_task(name)
    data = _recorded_data(path, result, task, data_dir, raw_dir)
    _check_same_text(path, result, task, data, split)
    sources, references = zip(*open_source(data, split).pairs(), strict=True)
    return data, Texts(split, [*sources], [*references], saved_outputs(path, result, split))


# --- Verifying ----------------------------------------------------------------------------


def verify(
    path: Path,
    restore: Callable[..., TrainedModel] | None,
    data_dir: str | None,
    raw_dir: str | None,
) -> bool:
    """Compares a result's scores with new ones; prints whether they agree, and returns it.

    restore: returns the run's model, which is evaluated again; None scores the saved outputs again.
    """
    result = read(path)
    splits, task = result["splits"], find_task(result["config"]["task.name"])
    if restore:
        model = restore(**checkpoint_flags(result), **search_flags(result))
        check_same_runs(path, result, model)
        data, tolerance = model.task.data, TOLERANCE
        found = {split: evaluate(model, split).scores for split in splits}
    else:
        data, tolerance = _recorded_data(path, result, task, data_dir, raw_dir), EXACT
        outputs = {split: saved_outputs(path, result, split) for split in splits}
        found = {split: task.rescore(data, split, outputs[split]) for split in splits}
        for entry in splits.values():
            kept = {n: score for n, score in entry["scores"].items() if "needs_model" not in score}
            entry["scores"] = kept
    for split in splits:
        _check_same_text(path, result, task, data, split)
    if not distributed.is_first():
        return True
    lines = disagreements(result, found, tolerance)
    for line in lines:
        print(f"differs  {line}")
    count = sum(len(entry["scores"]) for entry in splits.values())
    print(f"{path}: {count - len(lines)} of {count} scores agree to within {tolerance}", flush=True)
    return not lines


def _check_same_text(path: Path, result: Result, task: Task, data: Any, split: str) -> None:
    if task.content_sha256(data, split) != result["splits"][split]["text_sha256"]:
        raise UserError(
            f"the {split} split is another text than that of {path}; give the same data with "
            "--data_dir or --raw_dir"
        )


def check_same_runs(path: Path, result: Result, model: TrainedModel) -> None:
    """Raises UserError if a work directory is not, or is no longer, the recorded run."""
    recorded, given = runs(result), [model, *model.others]
    if len(given) != len(recorded):
        raise UserError(
            f"work directories given: {len(given)}, runs of {path}: {len(recorded)}; give the "
            "first as --workdir, and if there are more, these as --ensemble"
        )
    for one, run in zip(given, recorded, strict=True):
        made = one.task.provenance()  # e.g. the tokenizer's hash
        expected = history.identity(run) | {name: result.get(name) for name in made}
        fields, steps = history.recorded_fields(one.config), one.chosen.steps
        found = {"config": fields, "checkpoint_steps": steps}
        found = history.identity(found | {"init_from": provenance.origin(one.workdir)}) | made
        for name, value in expected.items():
            if found.get(name) != value:
                raise UserError(
                    f"{one.workdir} is not the run of {path}: {name} is {found.get(name)!r} and "
                    f"was {value!r}; give the work directory of that run in its place"
                )


def _recorded_data(
    path: Path, result: Result, task: Task, data_dir: str | None, raw_dir: str | None
) -> Any:
    """The data section of a result; paths are not recorded, so they are given."""
    section, config = task.sections["data"], result["config"]
    # Treebanks have no name; they are in --raw_dir.
    if config.get("data.dataset", raw_dir) is None:
        where = "" if "data.dataset" in config else ", or --raw_dir"
        raise UserError(f"{path} is of text files; give the --workdir of its run{where}")
    # Without paths: a stranger's result must not name files to read.
    fields = {field.name: field for field in dataclasses.fields(section)}
    places = {name for name, field in fields.items() if field.metadata.get("place")}
    recorded = {f: config[f"data.{f}"] for f in fields.keys() - places if f"data.{f}" in config}
    check_types("data", section, recorded)
    given = {"data_dir": data_dir or "~/tensorflow_datasets", "raw_dir": raw_dir}
    given = {name: value for name, value in given.items() if name in places}
    try:
        needed = [name for name, field in fields.items() if not field.kw_only]
        return section(**dict.fromkeys(needed) | recorded | given)
    except TypeError as error:  # None may serve for fields that earlier commits did not have
        raise UserError(f"{path} does not have all fields of data; restore it") from error


def disagreements(
    result: Result, found: Mapping[str, Mapping[str, dict]], tolerance: float
) -> list[str]:
    """The scores, by split and metric, that differ from the recorded ones, in words."""
    lines = []
    for split, entry in result["splits"].items():
        for name, score in entry["scores"].items():
            was, now = score["score"], math.nan  # NaN if the metric no longer exists
            if name in found[split]:
                now = found[split][name]["score"]
            if not abs(was - now) <= tolerance:
                lines.append(f"{split} {name}: recorded {was:.2f}, now {now:.2f}")
    return lines
