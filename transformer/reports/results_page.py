"""RESULTS.md and its pictures, from the files of the ledger.

python -m transformer.reports.results_page
"""

import collections
import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.reports import ledger
from transformer.reports.plots import LABELS, write_curves
from transformer.runs import history, provenance
from transformer.runs.provenance import ROOT
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

Result = Mapping[str, Any]

RESULTS = ROOT / "results"
_INTRO = """# Results

`python -m transformer.reports.results_page` makes this page from `results/*.json` and
`results/earlier.md`; do not edit it. Each JSON file is a run, or several runs that decode together.
The folder beside it has their translations.

The commands under a row reproduce it, at the commit of that row. The data are downloaded, or read
from a folder: `train.py --config.data.raw_dir=FOLDER`, `evaluate.py --raw_dir=FOLDER`.

- `python evaluate.py --verify=results/NAME.json` scores the saved translations again.
- `python evaluate.py --workdir=DIR --verify=results/NAME.json` translates again, with the run in
  DIR. Of several runs the others go into `--ensemble`, in the order of the commands.

The checkpoint of a row is the one with the higher BLEU on the validation split. The test splits
are translated with that checkpoint, once if no note says otherwise.
"""
# What others have reported for a test split, and where.
PUBLISHED = {
    ("multi30k/en-de-tok", "test_2016_flickr"): (
        "41.02, the same model in fairseq (Wu et al., ACL 2021, Transformer-Tiny); 42.5, the best "
        "without images at test time that is known to us (it was trained with synthetic ones)"
    ),
}


def results_page(folder: Path) -> str:
    """The text of RESULTS.md; raises UserError for a file that is no result."""
    parts = [_INTRO, *(_section(runs) for runs in by_data(folder).values())]
    earlier = folder / "earlier.md"
    if earlier.exists():
        parts.append(earlier.read_text(encoding="utf-8"))
    return "\n".join(parts)


def by_data(folder: Path) -> dict[str, dict[str, Result]]:
    """The results by name, of each kind of data."""
    sections = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.json")):
        result = ledger.read(path)
        sections[_title_of_data(result)][path.stem] = result
    return sections


def _title_of_data(result: Result) -> str:
    config = result["config"]
    data = config["data.dataset"] or f"text files {result['data_sha256']['train'][:8]}"
    return f"{data}, {config['data.source_language']} to {config['data.target_language']}"


def _section(results: Mapping[str, Result]) -> str:
    first = next(iter(results.values()))
    title, data = _title_of_data(first), first["config"]["data.dataset"]
    splits = [entry["name"] for result in results.values() for entry in result["splits"].values()]
    splits = list(dict.fromkeys(splits))
    lines = [f"## {title}", ""]
    for (dataset, split), text in PUBLISHED.items():
        if dataset == data:
            lines += [f"Published BLEU on {split}: {text}.", ""]

    # 1. Mean and standard deviation of runs that differ in the seed alone.
    groups = collections.defaultdict(dict)
    for result in results.values():
        runs = [tuple(one["seed"] for one in history.lineage(r)) for r in ledger.runs(result)]
        groups[_all_but_the_seed(result)].setdefault(tuple(sorted(runs)), result)
    lines += _table(
        ["Config", "Parameters", "Seeds", *(f"BLEU, {split}" for split in splits)],
        [
            [
                _title(next(iter(group.values()))),
                f"{next(iter(group.values()))['parameters'] / 1e6:.1f} M",
                len(group),
                *(mean_and_deviation([_bleu(r, s) for r in group.values()]) for s in splits),
            ]
            for group in groups.values()
        ],
    )

    # 2. The runs.
    lines += ["", f"![Learning curves](results/{picture_name(title)})", ""]
    header = ["Run", "Commit", "Hardware", "Trained", "Updates", "Target tokens", "Checkpoint"]
    lines += _table(
        [*header, *(f"BLEU, {split}" for split in splits)],
        [_row(name, result, splits) for name, result in results.items()],
    )

    # 3. How to get each of them again.
    for name, result in results.items():
        lines += ["", f"### {name}", "", "```", *_commands(name, result), "```", ""]
        lines += [f"- {_scores(entry)}" for entry in result["splits"].values()]
        tokenizer = ", ".join(sha[:16] for sha in result["tokenizer_sha256"])
        text = result["data_sha256"]["train"][:16]
        lines += [
            *dict.fromkeys(f"- {_versions(run['starts'][-1])}." for run in ledger.all_runs(result)),
            f"- SHA-256 of the training text {text}, of the tokenizer {tokenizer}.",
            *(f"- {note}" for note in result.get("notes", [])),
        ]
    return "\n".join(lines) + "\n"


def _row(name: str, result: Result, splits: Iterable[str]) -> list[str]:
    """What was run, in all if it were several, and the scores."""
    runs = ledger.all_runs(result)
    starts = [start for run in runs for start in run["starts"]]
    return [
        f"[{name}](results/{name}.json)",
        _each_once(start["commit"] for start in starts),
        _each_once(map(_hardware, starts)),
        _duration(sum(run["training_seconds"] for run in runs)),
        " + ".join(f"{run['steps']:,}" for run in runs),
        f"{sum(run['target_tokens'] for run in runs) / 1e6:.1f} M",
        _checkpoint(result),
        *(_number(_bleu(result, split)) for split in splits),
    ]


def _all_but_the_seed(result: Result) -> str:
    names = ("data_sha256", "tokenizer_sha256", "beam_size", "length_penalty", "candidates")
    same = {name: result[name] for name in names}
    same["candidates"] = sorted(result["candidates"])
    configs = [
        {name: value for name, value in run["config"].items() if name != "training.seed"}
        for run in ledger.all_runs(result)
    ]
    origins = [
        [one["checkpoint"], len(one["checkpoint_steps"]), one["starts"][-1].get("data")]
        for run in ledger.runs(result)
        for one in history.lineage(run)[:-1]
    ]
    return json.dumps([same, configs, origins], sort_keys=True)


def _title(result: Result) -> str:
    titles = [_title_of_run(run) for run in ledger.runs(result)]
    count = f"{len(titles)} runs searched as one: " if len(titles) > 1 else ""
    search = {"beam_size": result["beam_size"], "length_penalty": result["length_penalty"]["alpha"]}
    config = result["config"]
    flags = [f"`--{k}={v}`" for k, v in search.items() if v != config[f"decoding.{k}"]]
    return ", ".join([count + " and ".join(dict.fromkeys(titles)), *flags])


def _title_of_run(run: Mapping[str, Any]) -> str:
    changes = [
        f"`{name}={value}`"
        for name, value in run["overrides"].items()
        if name != "training.init_from"
    ]
    title = ", ".join([f"`{run['config_file']}`", *changes])
    if origin := run.get("init_from"):
        title += f", begun with the {origin['checkpoint']} of ({_title_of_run(origin)})"
    return title


def _bleu(result: Result, split: str) -> float | None:
    scores = [e["scores"]["bleu"]["score"] for e in result["splits"].values() if e["name"] == split]
    return scores[0] if scores else None


def mean_and_deviation(scores: Sequence[float | None]) -> str:
    """Of those that are there, as "41.00 ± 1.41", or "41.00" of one."""
    scores = [score for score in scores if score is not None]
    if len(scores) < 2:
        return _number(scores[0] if scores else None)
    return f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _each_once(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _versions(start: Mapping[str, Any]) -> str:
    shown = [f"{name} {start[name]}" for name in provenance.PACKAGES if start.get(name)]
    return f"Python {start['python']}, {', '.join(shown)}"


def _hardware(start: Mapping[str, Any]) -> str:
    return start["cpu"] if start["device"].endswith("cpu") else start["device"]


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _checkpoint(result: Result) -> str:
    steps = [run["checkpoint_steps"] for run in ledger.runs(result)]
    candidates = [f"{name} {bleu:.2f}" for name, bleu in result["candidates"].items()]
    if (count := len(steps[0])) > 1:
        what = f"average of {count}"
    else:
        what = f"{result['checkpoint']}, step {_each_once(f'{one[0]}' for one in steps)}"
    return f"{what} (validation: {', '.join(candidates)})"


def _scores(entry: Mapping[str, Any]) -> str:
    """The scores of a split with their signatures."""
    scores = [
        f"{name} {score['score']:.2f}" + (f" `{s}`" if (s := score.get("signature")) else "")
        for name, score in entry["scores"].items()
    ]
    return f"{entry['name']}, {entry['sentences']} sentences: {'; '.join(scores)}."


def _commands(name: str, result: Result) -> list[str]:
    """What trains the run or the runs again, and scores them."""
    runs = ledger.runs(result)
    workdirs = [f"runs/{name}{f'.{i}' if len(runs) > 1 else ''}" for i in range(len(runs))]
    others = [f"--ensemble={','.join(workdirs[1:])}"] if len(runs) > 1 else []
    average = len(result["checkpoint_steps"]) if result["checkpoint"] == "average" else 0
    search = [
        f"--checkpoint={result['checkpoint']}",
        *([f"--average_last={average}"] if average else []),
        f"--beam_size={result['beam_size']}",
        f"--length_penalty={result['length_penalty']['alpha']}",
    ]
    made: list[tuple[Any, str]] = []
    train = [
        words for run, d in zip(runs, workdirs, strict=True) for words in _training(run, d, made)
    ]
    tested = [split for split in result["splits"] if split != "validation"] or ["validation"]
    which = [f"--workdir={workdirs[0]}", *others]
    evaluate = [
        ["python evaluate.py", *which, shlex.quote(f"--split={s}"), *search] for s in tested
    ]
    return [" ".join(words) for words in (*train, *evaluate)]


def _training(run: Mapping[str, Any], workdir: str, made: list[tuple[Any, str]]) -> list[list[str]]:
    """What trains a run, after what trains those whose parameters it begins with.

    made: such parameters and where they are, from earlier commands; those of these are added.
    """
    commands, fields = [], {}
    if origin := run.get("init_from"):
        places = [place for other, place in made if other == origin]
        if not places:
            places = [f"{workdir}.initial"]
            commands = _training(origin, places[0], made)
            if origin["checkpoint"] != "best":
                which = [f"--checkpoint={origin['checkpoint']}"]
                if origin["checkpoint"] == "average":
                    which.append(f"--average_last={len(origin['checkpoint_steps'])}")
                model = f"{places[0]}.{origin['checkpoint']}"
                export = [f"--workdir={places[0]}", *which, f"--export={model}"]
                commands.append(["python evaluate.py", *export])
                places = [model]
            made.append((origin, places[0]))
        fields["training.init_from"] = places[0]
    options = _options(run, fields)
    train = ["python train.py", f"--config={run['config_file']}", *options, f"--workdir={workdir}"]
    return [*commands, train]


def _options(run: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """What a run's command says of its config; `known` takes the place of what is recorded."""
    fields = {**run["overrides"], **known, "training.seed": run["seed"]}
    if run["config"]["data.dataset"] is None:
        sides = [f"data.{split}_{side}" for split in ("train", "validation") for side in _SIDES]
        fields |= dict.fromkeys(sides, "FILE")
    return [shlex.quote(f"--config.{field}={value}") for field, value in fields.items()]


_SIDES = ("source", "target")


def _table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


# --- Pictures -----------------------------------------------------------------------------


def picture_name(title: str) -> str:
    words = title.replace(", ", "-")
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in words) + ".png"


def draw(title: str, results: Mapping[str, Result], path: Path) -> None:
    """Validation metrics of runs on the same data, against the step."""
    names = dict.fromkeys(name for result in results.values() for name in result["curve"])
    panels = {
        f"validation {LABELS.get(name, name)}": {
            label: result["curve"][name]
            for label, result in results.items()
            if result["curve"].get(name)
        }
        for name in names
    }
    drawn = {label: curves for label, curves in panels.items() if curves}
    write_curves(path, title, drawn or {"no curves": {}})


def main() -> None:
    try:
        write_atomically(ROOT / "RESULTS.md", results_page(RESULTS))
        for title, results in by_data(RESULTS).items():
            draw(title, results, RESULTS / picture_name(title))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
