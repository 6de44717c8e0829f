"""The results ledger: a JSON file for each run, and RESULTS.md made from them.

    python evaluate.py --workdir=runs/tiny --record=results/multi30k_tiny-0.json
    python evaluate.py --workdir=runs/tiny --verify=results/multi30k_tiny-0.json
    python -m transformer.ledger                     writes RESULTS.md

A result says what was run, with what, on what, and what came of it; the translations lie beside
it in a folder of its name. Paths are left out: they are not the same elsewhere.
"""

import collections
import dataclasses
import hashlib
import importlib
import io
import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from transformer import experiment, provenance
from transformer.errors import UserError
from transformer.evaluation import Translations
from transformer.experiment import Experiment
from transformer.files import write_atomically
from transformer.logs import read_metrics
from transformer.model import num_params
from transformer.provenance import ROOT
from transformer.sources import DataConfig, PairSource
from transformer.trained import TrainedModel

RESULTS = ROOT / "results"
# Scores of the same checkpoint on other hardware differ by less: some sentences come out in
# other words.
TOLERANCE = 0.2
CURVES = ("nll", "bleu")
_VALIDATION = "eval/validation/"
# Fields that say where the text lies and how the work is spread, not what is computed.
NOT_RECORDED = {
    *(name for name in experiment.MAY_CHANGE if name.startswith(("data.", "mesh."))),
    *("training.max_tokens_per_device", "training.log_every"),
}


def text_sha256(source: PairSource) -> str:
    """A hash of the sentence pairs themselves, wherever they are read from."""
    content = hashlib.sha256()
    for chunk in source.chunks(10_000):
        content.update("".join(f"{a}\n{b}\n" for a, b in chunk).encode(errors="surrogatepass"))
    return content.hexdigest()


def lines_sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def new_result(
    model: TrainedModel,
    checkpoint: str,
    candidates: Mapping[str, float],
    splits: Mapping[str, tuple[Translations, dict[str, Any]]],
    data_sha256: Mapping[str, str],
) -> dict[str, Any]:
    """What the ledger keeps of a run.

    checkpoint: 'best', 'last' or 'average'; candidates: validation BLEU of those that it was
    chosen from. splits: translations and scores by split, validation among them.
    Raises UserError for a run that has not noted how it was started.
    """
    config, workdir = model.config, model.workdir
    if not (starts := provenance.starts(workdir)):
        raise UserError(f"{workdir} has no starts.jsonl, so nobody knows what it was trained with")
    metrics = [m for m in read_metrics(workdir / "metrics.jsonl") if m["step"] <= model.last_step]
    totals = {
        name: max((line[f"total/{name}"] for line in metrics if f"total/{name}" in line), default=0)
        for name in ("seconds", "target_tokens")
    }
    config_file = starts[-1]["config_file"]
    fields = comparable(config)
    return {
        "config_file": config_file,
        "overrides": overrides(fields, config_file),
        "seed": config.training.seed,
        "config": fields,
        "data_sha256": dict(data_sha256),
        **model.provenance(),
        "checkpoint": checkpoint,
        "steps": model.last_step,
        "parameters": num_params(model.params),
        "target_tokens": int(totals["target_tokens"]),
        "training_seconds": round(totals["seconds"]),
        "starts": [
            {name: value for name, value in start.items() if name not in ("command", "config_file")}
            for start in starts
        ],
        "candidates": dict(candidates),
        "splits": {
            split: {
                "scores": scores,
                "sentences": len(translations.hypotheses),
                "references_sha256": lines_sha256(translations.references),
                "hypotheses_sha256": lines_sha256(translations.hypotheses),
            }
            for split, (translations, scores) in splits.items()
        },
        "curve": curve(metrics),
    }


def comparable(config: Experiment) -> dict[str, Any]:
    """The fields of a config that say what was computed, by name, without paths and meshes."""
    fields = experiment.flat(config.to_dict())
    if config.data.uses_text_files:
        fields["data.dataset"] = None
    return {name: value for name, value in fields.items() if name not in NOT_RECORDED}


def overrides(fields: Mapping[str, Any], config_file: str) -> dict[str, Any]:
    """The fields in which a run departs from its config file, the seed aside."""
    module = importlib.import_module(config_file.removesuffix(".py").replace("/", "."))
    original = comparable(Experiment.from_dict(module.get_config().to_dict()))
    return {
        name: value
        for name, value in fields.items()
        if value != original[name] and name != "training.seed"
    }


def curve(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Validation nll and BLEU by step."""
    values = {name: [(m["step"], m.get(_VALIDATION + name)) for m in metrics] for name in CURVES}
    return {
        name: [(step, round(value, 4)) for step, value in points if value is not None]
        for name, points in values.items()
    }


def write(
    path: Path,
    result: Mapping[str, Any],
    splits: Mapping[str, tuple[Translations, dict[str, Any]]],
) -> None:
    """The translations, one sentence a line, and then the result itself."""
    for split, (translations, _) in splits.items():
        text = "".join(f"{line}\n" for line in translations.hypotheses)
        write_atomically(path.with_suffix("") / f"{_file_name(split)}.txt", text)
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Raises UserError for a file that is no result."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result["splits"], dict):
            raise TypeError("no splits")
    except OSError as error:
        raise UserError(f"cannot read the result {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no result of this ledger; give a JSON file that --record has written"
        ) from error
    return result


def data_config(result: Mapping[str, Any]) -> DataConfig:
    """The data of a result, in the folder that configs/base.py names: it does not say where."""
    recorded = {k.removeprefix("data."): v for k, v in result["config"].items() if "data." in k}
    if recorded["dataset"] is None:
        raise UserError("this result is of text files; give the --workdir of its run")
    elsewhere = {field.name: None for field in dataclasses.fields(DataConfig)}
    return DataConfig(**elsewhere | {"data_dir": "~/tensorflow_datasets"} | recorded)


def saved_hypotheses(path: Path, result: Mapping[str, Any], split: str) -> list[str]:
    """The translations beside a result; raises UserError if they are not those it is about."""
    file = path.with_suffix("") / f"{_file_name(split)}.txt"
    try:
        lines = file.read_bytes().decode().removesuffix("\n").split("\n")
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    if lines_sha256(lines) != result["splits"][split]["hypotheses_sha256"]:
        raise UserError(f"{file} has been changed since {path} was written; restore it")
    return lines


def references(path: Path, result: Mapping[str, Any], split: str, source: PairSource) -> list[str]:
    """The references of a split; raises UserError if they are not those of the result."""
    lines = [reference for chunk in source.chunks(10_000) for _, reference in chunk]
    if lines_sha256(lines) != result["splits"][split]["references_sha256"]:
        raise UserError(f"the references of {split} are not those of {path}: {source.describe()}")
    return lines


def _file_name(split: str) -> str:
    return split.replace("/", "_")


# --- Agreement ----------------------------------------------------------------------------


def disagreements(
    recorded: Mapping[str, Any], found: Mapping[str, Mapping[str, dict]], tolerance: float
) -> list[str]:
    """Where the scores found, by split and metric, are not those recorded, in words."""
    return [
        f"{split} {name}: recorded {score['score']:.2f}, now {found[split][name]['score']:.2f}"
        for split, entry in recorded["splits"].items()
        for name, score in entry["scores"].items()
        if not abs(score["score"] - found[split][name]["score"]) <= tolerance
    ]


def check_same_run(path: Path, recorded: Mapping[str, Any], model: TrainedModel) -> None:
    """Raises UserError if a work directory is of another run than the result."""
    fields = comparable(model.config)
    for name, value in recorded["config"].items():
        if fields.get(name) != value:
            raise UserError(
                f"{model.workdir} is not the run of {path}: {name} is {fields.get(name)!r} and was "
                f"{value!r}; give the --workdir of that run"
            )
    if recorded["tokenizer_sha256"] != model.provenance()["tokenizer_sha256"]:
        raise UserError(f"{model.workdir} is not the run of {path}: it has another tokenizer")


# --- RESULTS.md ---------------------------------------------------------------------------

_INTRO = """# Results

Made from `results/*.json` by `python -m transformer.ledger`; do not edit. Each file is a run; its
translations lie in a folder beside it. Repeat a run with its commands; check one that you have
made with `python evaluate.py --workdir=DIR --verify=results/NAME.json`, or, without a run, what
its translations score: `python evaluate.py --verify=results/NAME.json`.

Validation chooses the checkpoint: the best one, or the average of the last few, whichever has the
higher BLEU on the validation split. The test splits are translated once, with that.
"""
# What others have reported for a test split, and where.
PUBLISHED = {
    ("multi30k/en-de-tok", "test_2016_flickr"): (
        "41.02, the same model in fairseq (Wu et al., ACL 2021, Transformer-Tiny); 42.5, the best "
        "without images at test time that is known to us (it was trained with synthetic ones)"
    ),
}


def results_md(folder: Path) -> str:
    """The text of RESULTS.md; raises UserError for a file that is no result."""
    results = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    by_data = collections.defaultdict(dict)
    for name, result in results.items():
        by_data[_data_name(result)][name] = result
    parts = [_INTRO, *(_section(data, runs) for data, runs in by_data.items())]
    earlier = folder / "earlier.md"
    if earlier.exists():
        parts.append(earlier.read_text(encoding="utf-8"))
    return "\n".join(parts)


def _data_name(result: Mapping[str, Any]) -> str:
    config = result["config"]
    return config["data.dataset"] or "text files"


def _section(data: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    first = next(iter(runs.values()))["config"]
    source, target = first["data.source_language"], first["data.target_language"]
    splits = list(dict.fromkeys(s for run in runs.values() for s in run["splits"]))
    lines = [f"## {data}, {source} to {target}", ""]
    for (dataset, split), text in PUBLISHED.items():
        if dataset == data:
            lines += [f"Published BLEU on {split}: {text}.", ""]

    # 1. Mean and standard deviation of runs that differ in the seed alone.
    groups = collections.defaultdict(list)
    for run in runs.values():
        groups[_title(run)].append(run)
    lines += _table(
        ["Config", "Parameters", "Seeds", *(f"BLEU, {split}" for split in splits)],
        [
            [
                title,
                f"{group[0]['parameters'] / 1e6:.1f} M",
                len(group),
                *(_mean_and_deviation([_bleu(run, split) for run in group]) for split in splits),
            ]
            for title, group in groups.items()
        ],
    )

    # 2. The runs.
    lines += ["", f"![Learning curves](results/{picture_name(data)})", ""]
    header = ["Run", "Commit", "Hardware", "Trained", "Updates", "Target tokens", "Checkpoint"]
    lines += _table(
        [*header, *(f"BLEU, {split}" for split in splits)],
        [
            [
                f"[{name}](results/{name}.json)",
                ", ".join(dict.fromkeys(start["commit"] for start in run["starts"])),
                _hardware(run["starts"]),
                _duration(run["training_seconds"]),
                f"{run['steps']:,}",
                f"{run['target_tokens'] / 1e6:.1f} M",
                _checkpoint(run),
                *(_number(_bleu(run, split)) for split in splits),
            ]
            for name, run in runs.items()
        ],
    )

    # 3. How to get each of them again.
    for name, run in runs.items():
        lines += ["", f"### {name}", "", "```", *_commands(name, run), "```", ""]
        lines += [f"- {_score_line(split, entry)}" for split, entry in run["splits"].items()]
        versions = run["starts"][-1]
        shown = [f"{package} {versions[package]}" for package in provenance.PACKAGES]
        lines += [
            f"- Python {versions['python']}, {', '.join(shown)}.",
            f"- SHA-256 of the training text {run['data_sha256']['train'][:16]}, of the tokenizer "
            f"{', '.join(sha[:16] for sha in run['tokenizer_sha256'])}.",
            *(f"- {note}" for note in run.get("notes", [])),
        ]
    return "\n".join(lines) + "\n"


def _title(run: Mapping[str, Any]) -> str:
    changes = [f"`{name}={value}`" for name, value in run["overrides"].items()]
    return ", ".join([f"`{run['config_file']}`", *changes])


def _bleu(run: Mapping[str, Any], split: str) -> float | None:
    return run["splits"][split]["scores"]["bleu"]["score"] if split in run["splits"] else None


def _mean_and_deviation(scores: Sequence[float | None]) -> str:
    scores = [score for score in scores if score is not None]
    if len(scores) < 2:
        return _number(scores[0] if scores else None)
    return f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _hardware(starts: Sequence[Mapping[str, Any]]) -> str:
    kinds = [s["cpu"] if s["device"].endswith("cpu") else s["device"] for s in starts]
    return ", ".join(dict.fromkeys(kinds))


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _checkpoint(run: Mapping[str, Any]) -> str:
    steps = run["checkpoint_steps"]
    others = [f"{name} {bleu:.2f}" for name, bleu in run["candidates"].items()]
    what = f"average of {len(steps)}" if len(steps) > 1 else f"{run['checkpoint']}, step {steps[0]}"
    return f"{what} (validation: {', '.join(others)})"


def _score_line(split: str, entry: Mapping[str, Any]) -> str:
    scores = [
        f"{name} {score['score']:.2f}" + (f" `{s}`" if (s := score.get("signature")) else "")
        for name, score in entry["scores"].items()
    ]
    return f"{split}, {entry['sentences']} sentences: {'; '.join(scores)}."


def _commands(name: str, run: Mapping[str, Any]) -> list[str]:
    """What trains and scores the run again."""
    workdir = f"--workdir=runs/{name}"
    fields = {**run["overrides"], "training.seed": run["seed"]}
    options = [shlex.quote(f"--config.{field}={value}") for field, value in fields.items()]
    tested = [split for split in run["splits"] if split != "validation"]
    average = len(run["checkpoint_steps"]) if run["checkpoint"] == "average" else 0
    return [
        " ".join(["python train.py", f"--config={run['config_file']}", *options, workdir]),
        " ".join(
            [
                f"python evaluate.py {workdir} {shlex.quote('--split=' + ','.join(tested))}",
                f"--checkpoint={run['checkpoint']}",
                *([f"--average_last={average}"] if average else []),
                f"--beam_size={run['beam_size']}",
                f"--length_penalty={run['length_penalty']['alpha']}",
            ]
        ),
    ]


def _table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


# --- Pictures -----------------------------------------------------------------------------


def picture_name(data: str) -> str:
    return f"{data.replace('/', '_').replace(' ', '_')}.png"


def draw(data: str, runs: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Validation nll and BLEU of runs on the same data, against the step."""
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, sharex=True)
    for axes, name, label in zip(panels, CURVES, ("nats per token", "BLEU"), strict=True):
        for run, result in runs.items():
            if points := result["curve"][name]:
                axes.plot(*zip(*points, strict=True), label=run, linewidth=1)
        axes.set_ylabel(f"validation {label}")
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    panels[1].set_xlabel("step (updates)")
    figure.suptitle(data, parse_math=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())


def main() -> None:
    write_atomically(ROOT / "RESULTS.md", results_md(RESULTS))
    by_data = collections.defaultdict(dict)
    for path in sorted(RESULTS.glob("*.json")):
        result = read(path)
        by_data[_data_name(result)][path.stem] = result
    for data, runs in by_data.items():
        draw(data, runs, RESULTS / picture_name(data))


if __name__ == "__main__":
    main()
