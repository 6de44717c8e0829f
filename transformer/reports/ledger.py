"""The results ledger: a JSON file for each run.

    python evaluate.py --workdir=runs/tiny --record=results/multi30k_tiny-0.json
    python evaluate.py --workdir=runs/tiny --verify=results/multi30k_tiny-0.json
    python -m transformer.reports.results_page                 makes RESULTS.md of them

A result says what was run, with what, on what, and what came of it; the translations lie beside
it in a folder of its name. Where files lay is left out: it is not the same elsewhere. Of an
ensemble, the first run stands where a single one would, and the others are in `ensemble_with`.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer.data.sources import SPLITS, DataConfig, Pair, open_source, training_source
from transformer.evaluation.evaluation import Translations, one_a_line
from transformer.models.functional import num_params
from transformer.runs import experiment, provenance
from transformer.runs.experiment import Experiment
from transformer.runs.metrics import read_metrics
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

# Scores of the same checkpoint on other hardware differ by less: some sentences come out in
# other words.
TOLERANCE = 0.2
CURVES = ("nll", "bleu")
_VALIDATION = "eval/validation/"
# Files of which a result says no more than that they were given; what is in them is elsewhere:
FILES = (
    *("data.extra_source", "data.extra_target"),  # data_sha256, and starts: data
    *("tokenizer.source_model", "tokenizer.target_model"),  # tokenizer_sha256
    "training.init_from",  # init_from
)
# What scores.json says of the work directories themselves.
_OF_WORKDIRS = "config_sha256", "ensemble_with"
# Fields that say where files lie and how the work is spread, not what is computed.
NOT_RECORDED = {
    *(name for name in experiment.MAY_CHANGE if name.startswith(("data.", "mesh."))),
    *FILES,
    *("training.max_tokens_per_device", "training.log_every"),
}
# What is recorded of the fields that older runs have not.
ADDED = {k: v for k, v in experiment.ADDED.items() if k not in NOT_RECORDED}
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
_TYPES_IN_SCORE = {"score": (int, float)}

# --- Making -------------------------------------------------------------------------------


def check_can_be_recorded(path: Path, model: TrainedModel, splits: Collection[str]) -> None:
    """Raises UserError for what would prove nothing, or would take the place of other files."""
    if path.suffix != ".json":
        raise UserError(f"--record={path}: give a file name that ends in .json")
    files, folder = _hypotheses_files(path, [*splits, *_earlier_splits(path)]), path.with_suffix("")
    found = folder.iterdir() if folder.is_dir() else [folder] if folder.exists() else []
    if others := sorted(str(f) for f in found if f not in files and f.suffix != ".tmp"):
        raise UserError(
            f"--record={path} would put translations into {folder}, and {others[0]} is no such "
            "file; move it, or give another name"
        )
    for run in [model, *model.others]:
        starts = provenance.starts(run.workdir)
        if not starts or starts[0]["step"]:
            raise UserError(
                f"{run.workdir}/starts.jsonl does not say how this run was begun; only runs of "
                "train.py since there is a ledger can be recorded"
            )
        if run.config.training.init_from and not is_known(provenance.origin(run.workdir)):
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


def is_known(origin: Mapping[str, Any] | None) -> bool:
    """Whether what a run began with can be had again by what is known of it."""
    if not origin or not origin.get("starts") or origin["starts"][0]["step"]:
        return False
    is_at_its_end = origin["steps"] >= origin["config"]["training.steps"]
    if "training.init_from" in origin["overrides"] and not is_known(origin.get("init_from")):
        return False
    return is_at_its_end or origin["stopped_early"]


def new_result(
    model: TrainedModel,
    candidates: Mapping[str, float],
    splits: Mapping[str, tuple[Translations, dict[str, Any]]],
    data_sha256: Mapping[str, str],
) -> dict[str, Any]:
    """What the ledger keeps of a run, or of an ensemble of runs.

    candidates: validation BLEU of those checkpoints that the model's was chosen from. splits:
    translations and scores by split, validation among them. data_sha256: of the texts of training
    and validation.
    """
    data = model.config.data
    return {
        **run_of(model),
        **({"ensemble_with": [run_of(other) for other in model.others]} if model.others else {}),
        **{k: v for k, v in model.provenance().items() if k not in _OF_WORKDIRS},
        "data_sha256": dict(data_sha256),
        "checkpoint": model.checkpoint,
        "parameters": num_params(model.params),
        "candidates": dict(candidates),
        "splits": {
            split: {
                "name": getattr(data, f"{split}_split") if split in SPLITS else split,
                "scores": scores,
                "sentences": len(translations.hypotheses),
                "text_sha256": text_sha256(zip(*translations[:2], strict=True)),
                "hypotheses_sha256": hashlib.sha256(_text(translations)).hexdigest(),
            }
            for split, (translations, scores) in splits.items()
        },
        "curve": curve([] if model.others else _metrics(model)),
    }


def run_of(model: TrainedModel) -> dict[str, Any]:
    """What was run, with what and on what."""
    config, metrics = model.config, _metrics(model)
    totals = {
        name: max(line[f"total/{name}"] for line in metrics if f"total/{name}" in line)
        for name in ("seconds", "target_tokens")
    }
    starts = provenance.starts(model.workdir)
    newest = starts[-1]
    # One that came when all was done has trained nothing, but may have said that it was.
    starts = [start for start in starts if start["step"] < model.last_step]
    apart = ("config_file", "overrides", "command")
    origin = provenance.origin(model.workdir)
    return {
        "config_file": _without_folder(newest["config_file"]),
        "overrides": overrides(newest, config),
        "seed": config.training.seed,
        "config": comparable(config),
        "checkpoint_steps": model.steps,
        "steps": model.last_step,
        "target_tokens": int(totals["target_tokens"]),
        "training_seconds": round(totals["seconds"]),
        "starts": [{k: v for k, v in start.items() if k not in apart} for start in starts],
        **({"init_from": origin} if origin else {}),
    }


def _metrics(model: TrainedModel) -> list[dict[str, float]]:
    """The lines of metrics.jsonl up to the last checkpoint."""
    metrics = read_metrics(model.workdir / "metrics.jsonl")
    return [line for line in metrics if line["step"] <= model.last_step]


def overrides(start: Mapping[str, Any], config: Experiment) -> dict[str, Any]:
    """In what a config differs from its file, as a start says; FILE stands for each of FILES."""
    fields = experiment.flat(config.to_dict())
    apart = {*NOT_RECORDED, "training.seed"}
    found = {name: value for name, value in start["overrides"].items() if name not in apart}
    return found | {name: "FILE" for name in FILES if fields[name]}


def _without_folder(path: str) -> str:
    """An absolute path is one of this machine; a relative one, as a rule, of the project."""
    return Path(path).name if Path(path).is_absolute() else path


def text_hashes(data: DataConfig) -> dict[str, str]:
    """Of what a run was trained and validated on."""
    sources = {"train": training_source(data), "validation": open_source(data, "validation")}
    return {split: text_sha256(source.pairs()) for split, source in sources.items()}


def text_sha256(pairs: Iterable[Pair]) -> str:
    """A hash of the sentence pairs themselves, wherever they are read from."""
    content = hashlib.sha256()
    for source, target in pairs:
        content.update(f"{source}\n{target}\n".encode(errors="surrogatepass"))
    return content.hexdigest()


def comparable(config: Experiment) -> dict[str, Any]:
    """The fields of a config that say what was computed, by name."""
    fields = experiment.flat(config.to_dict())
    if config.data.uses_text_files:
        fields["data.dataset"] = None
    return {name: value for name, value in fields.items() if name not in NOT_RECORDED}


def curve(metrics: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Validation nll and BLEU by step."""
    return {
        name: [
            (line["step"], round(value, 4))
            for line in metrics
            if (value := line.get(f"{_VALIDATION}{name}")) is not None
        ]
        for name in CURVES
    }


def write(
    path: Path,
    result: Mapping[str, Any],
    splits: Mapping[str, tuple[Translations, dict[str, Any]]],
) -> None:
    """The translations, one sentence a line, and then the result itself."""
    earlier = _hypotheses_files(path, _earlier_splits(path))
    for split, (translations, _) in splits.items():
        write_atomically(_hypotheses_file(path, split), _text(translations))
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for file in earlier - _hypotheses_files(path, splits):
        file.unlink(missing_ok=True)


def _earlier_splits(path: Path) -> Collection[str]:
    """The splits of the result that `path` holds; raises UserError if it holds something else."""
    return read(path)["splits"].keys() if path.exists() else ()


def _hypotheses_files(path: Path, splits: Iterable[str]) -> set[Path]:
    return {_hypotheses_file(path, split) for split in splits}


def _text(translations: Translations) -> bytes:
    return one_a_line(translations.hypotheses).encode()


def _hypotheses_file(path: Path, split: str) -> Path:
    return path.with_suffix("") / f"{split.replace('/', '_')}.txt"


# --- Checking -----------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """A result, with the fields that its runs are older than; UserError for another file."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        _check_types(result, _TYPES)
        for run in all_runs(result):
            _check_types(run, _TYPES_IN_RUN)
            run["config"] = ADDED | run["config"]
        for entry in result["splits"].values():
            _check_types(entry, _TYPES_IN_SPLIT)
            for score in entry["scores"].values():
                _check_types(score, _TYPES_IN_SCORE)
    except OSError as error:
        raise UserError(f"cannot read the result {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is no result of this ledger; give a JSON file that --record has written"
        ) from error
    return result


def runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The one run of a result, or those of an ensemble."""
    return [result, *result.get("ensemble_with", [])]


def lineage(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The run, after those whose parameters it began with, the first of them first."""
    origin = run.get("init_from")
    return [*(lineage(origin) if origin else []), run]


def all_runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All that was trained for a result: what several runs began with, once."""
    found = []
    for run in runs(result):
        found += [one for one in lineage(run) if one not in found]
    return found


def _check_types(entry: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for name, kind in types.items():
        if not isinstance(entry[name], kind):
            raise TypeError(f"{name} is {entry[name]!r}")


def check_same_runs(path: Path, recorded: Mapping[str, Any], model: TrainedModel) -> None:
    """Raises UserError if a work directory is not, or is no longer, what was recorded."""
    expected_runs, given = runs(recorded), [model, *model.others]
    if len(given) != len(expected_runs):
        raise UserError(
            f"work directories given: {len(given)}, runs of {path}: {len(expected_runs)}; give the "
            "first as --workdir, and if there are more, these as --ensemble"
        )
    for one, run in zip(given, expected_runs, strict=True):
        fields = comparable(one.config)
        found = {name: fields.get(name) for name in run["config"]}
        found |= {"checkpoint_steps": one.steps, "tokenizer_sha256": one.tokenizers.sha256}
        expected = run["config"] | {"checkpoint_steps": run["checkpoint_steps"]}
        expected |= {"tokenizer_sha256": recorded["tokenizer_sha256"]}
        for facts, origin in (
            (found, provenance.origin(one.workdir)),
            (expected, run.get("init_from")),
        ):
            # Not the hash of the parameters: on another machine they come out a little different.
            facts["what it began with"] = origin and [
                [before["checkpoint"], before["checkpoint_steps"], ADDED | before["config"]]
                for before in lineage(origin)
            ]
        for name, value in expected.items():
            if found[name] != value:
                raise UserError(
                    f"{one.workdir} is not the run of {path}: {name} is {found[name]!r} and was "
                    f"{value!r}; give the work directory of that run in its place"
                )


def check_text(path: Path, recorded: Mapping[str, Any], split: str, pairs: Iterable[Pair]) -> None:
    """Raises UserError if the sentences of a split are not those of the result."""
    if text_sha256(pairs) != recorded["splits"][split]["text_sha256"]:
        raise UserError(
            f"the {split} split is another text than that of {path}; give the same data with "
            "--data_dir or --raw_dir"
        )


def data_config(path: Path, result: Mapping[str, Any]) -> DataConfig:
    """The data of a result, where evaluate.py finds them if no flag says where they are."""
    recorded = {
        name.removeprefix("data."): value
        for name, value in result["config"].items()
        if name.startswith("data.")
    }
    if recorded.get("dataset") is None:
        raise UserError(f"{path} is of text files; give the --workdir of its run")
    fields = {field.name: None for field in dataclasses.fields(DataConfig)}
    fields |= {"data_dir": "~/tensorflow_datasets"}
    return DataConfig(**fields | {name: recorded[name] for name in recorded if name in fields})


def saved_hypotheses(path: Path, result: Mapping[str, Any], split: str) -> list[str]:
    """The translations beside a result; raises UserError if they are not those it is about."""
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
