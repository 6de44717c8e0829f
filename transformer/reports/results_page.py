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
from transformer.reports.ledger import Result, Run
from transformer.reports.plots import label, write_curves
from transformer.runs import history
from transformer.runs.provenance import PACKAGES, ROOT
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

RESULTS = ROOT / "results"


def results_page(folder: Path) -> str:
    """The text of RESULTS.md; raises UserError for a file that is no result."""
    intro, earlier = (
        [path.read_text(encoding="utf-8")] if path.exists() else []
        for path in (folder / "intro.md", folder / "earlier.md")
    )
    sections = [_section(title, results) for title, results in by_data(folder).items()]
    return "\n".join([*intro, *sections, *earlier])


def by_data(folder: Path) -> dict[str, dict[str, Result]]:
    """The results by name, for each kind of data."""
    found = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.json")):
        result = ledger.read(path)
        config = result["config"]
        data = config["data.dataset"] or f"text files {result['data_sha256']['train'][:8]}"
        languages = f"{config['data.source_language']} to {config['data.target_language']}"
        found[f"{data}, {languages}"][path.stem] = result
    return found


def _section(title: str, results: Mapping[str, Result]) -> str:
    names = [entry["name"] for result in results.values() for entry in result["splits"].values()]
    splits = list(dict.fromkeys(names))
    metric = label(ledger.task_of(next(iter(results.values()))).main_metric)
    scores = [f"{metric}, {split}" for split in splits]

    # 1. Mean and standard deviation of results that differ in the seed alone.
    groups = collections.defaultdict(dict)
    for result in results.values():
        seeds = [tuple(one["seed"] for one in history.lineage(r)) for r in ledger.runs(result)]
        groups[_all_but_the_seed(result)].setdefault(tuple(sorted(seeds)), result)
    rows = [["Config", "Parameters", "Seeds", *scores]]
    for group in groups.values():
        first = next(iter(group.values()))
        parameters = f"{first['parameters'] / 1e6:.1f} M"
        means = [_mean(group.values(), split) for split in splits]
        rows.append([_title(first), parameters, f"{len(group)}", *means])
    lines = [f"## {title}", "", *_table(rows)]

    # 2. The results.
    lines += ["", f"![Learning curves](results/{picture_name(title)})", ""]
    rows = [["Run", "Commit", "Hardware", "Trained", "Updates", "Target tokens", "Checkpoint"]]
    rows[0] += scores
    for name, result in results.items():
        found = [_mean([result], split) for split in splits]
        rows.append([f"[{name}](results/{name}.json)", *_training(result), *found])
    lines += _table(rows)

    # 3. How to reproduce each of them.
    for name, result in results.items():
        lines += ["", f"### {name}", "", "```", *commands(name, result), "```", ""]
        lines += [f"- {_scores(entry)}" for entry in result["splits"].values()]
        versions = [_versions(run["starts"][-1]) for run in ledger.all_runs(result)]
        lines += [f"- {text}" for text in dict.fromkeys(versions)]
        lines += [f"- {_hashes(result)}", *(f"- {note}" for note in result.get("notes", []))]
    return "\n".join(lines) + "\n"


def _all_but_the_seed(result: Result) -> str:
    same = {name: value for name, value in result.items() if name.endswith("_sha256")}
    configs = [run["config"] | {"training.seed": None} for run in ledger.all_runs(result)]
    origins = [
        [one["checkpoint"], len(one["checkpoint_steps"]), one["starts"][-1].get("data")]
        for run in ledger.runs(result)
        for one in history.lineage(run)[:-1]
    ]
    search, candidates = ledger.search_flags(result), sorted(result["candidates"])
    return json.dumps([same, configs, origins, search, candidates], sort_keys=True)


def _title(result: Result) -> str:
    titles = [_title_of_run(run) for run in ledger.runs(result)]
    ensemble = f"ensemble of {len(titles)} runs: " if len(titles) > 1 else ""
    search = ledger.search_flags(result).items()
    flags = [f"`--{k}={v}`" for k, v in search if v != result["config"][f"decoding.{k}"]]
    return ", ".join([ensemble + " and ".join(dict.fromkeys(titles)), *flags])


def _title_of_run(run: Run) -> str:
    changes = {k: v for k, v in run["overrides"].items() if k != "training.init_from"}
    title = ", ".join([f"`{run['config_file']}`", *(f"`{k}={v}`" for k, v in changes.items())])
    if origin := run.get("init_from"):
        title += f", begun with the {origin['checkpoint']} of ({_title_of_run(origin)})"
    return title


def _training(result: Result) -> list[str]:
    """What was trained for a result, in all if these were several runs, and its checkpoint."""
    runs = ledger.all_runs(result)
    starts = [start for run in runs for start in run["starts"]]
    hours, minutes = divmod(round(sum(run["training_seconds"] for run in runs) / 60), 60)
    cpu = [s["cpu"] if s["device"].endswith("cpu") else s["device"] for s in starts]
    steps = [run["checkpoint_steps"] for run in ledger.runs(result)]
    checkpoint = f"average of {len(steps[0])}"
    if len(steps[0]) == 1:
        checkpoint = f"{result['checkpoint']}, step {_each_once(str(step) for (step,) in steps)}"
    candidates = ", ".join(f"{name} {score:.2f}" for name, score in result["candidates"].items())
    return [
        _each_once(start["commit"] for start in starts),
        _each_once(cpu),
        f"{hours} h {minutes} min" if hours else f"{minutes} min",
        " + ".join(f"{run['steps']:,}" for run in runs),
        f"{sum(run['target_tokens'] for run in runs) / 1e6:.1f} M",
        f"{checkpoint} (validation: {candidates})",
    ]


def _mean(results: Iterable[Result], split: str) -> str:
    return mean_and_deviation(
        [
            entry["scores"][ledger.task_of(result).main_metric]["score"]
            for result in results
            for entry in result["splits"].values()
            if entry["name"] == split
        ]
    )


def mean_and_deviation(scores: Sequence[float]) -> str:
    """Such as "41.00 ± 1.41"; "41.00" of one score, "-" of none."""
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{deviation}" if scores else "-"


def _each_once(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _scores(entry: Mapping[str, Any]) -> str:
    """The scores of a split with their signatures."""
    scores = [
        f"{name} {score['score']:.2f}" + (f" `{s}`" if (s := score.get("signature")) else "")
        for name, score in entry["scores"].items()
    ]
    return f"{entry['name']}, {entry['sentences']} sentences: {'; '.join(scores)}."


def _versions(start: Mapping[str, Any]) -> str:
    shown = [f"{name} {start[name]}" for name in PACKAGES if start.get(name)]
    return f"Python {start['python']}, {', '.join(shown)}."


def _hashes(result: Result) -> str:
    text = f"SHA-256 of the training text {result['data_sha256']['train'][:16]}"
    return f"{text}, of the tokenizer {', '.join(h[:16] for h in result['tokenizer_sha256'])}."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *others = rows
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *others)]


# --- Commands -----------------------------------------------------------------------------


def commands(name: str, result: Result) -> list[str]:
    """What trains the run or the runs of a result again, and scores them."""
    runs, made = ledger.runs(result), []
    workdirs = [f"runs/{name}.{i}" for i in range(len(runs))] if len(runs) > 1 else [f"runs/{name}"]
    ensemble = {"ensemble": ",".join(workdirs[1:])} if len(runs) > 1 else {}
    flags = {**ledger.checkpoint_flags(result), **ledger.search_flags(result)}
    train = [
        line
        for run, workdir in zip(runs, workdirs, strict=True)
        for line in _train(run, workdir, made)
    ]
    return train + [
        _command("evaluate", {"workdir": workdirs[0], **ensemble, "split": split, **flags})
        for split in [s for s in result["splits"] if s != "validation"] or ["validation"]
    ]


def _train(run: Run, workdir: str, made: list[tuple[Run, str]]) -> list[str]:
    """What trains a run, after what trains those whose parameters it begins with.

    made: such parameters that earlier commands make, and where. Those of these commands are added.
    """
    before, fields = [], run["overrides"] | {"training.seed": run["seed"]}
    if origin := run.get("init_from"):
        if origin not in [other for other, _ in made]:
            place = f"{workdir}.initial"
            before = _train(origin, place, made)
            if origin["checkpoint"] != "best":  # which training.init_from takes by itself
                export = f"{place}.{origin['checkpoint']}"
                flags = {"workdir": place, **ledger.checkpoint_flags(origin), "export": export}
                before.append(_command("evaluate", flags))
                place = export
            made.append((origin, place))
        fields["training.init_from"] = next(place for other, place in made if other == origin)
    changes = {f"config.{field}": value for field, value in fields.items()}
    flags = {"config": run["config_file"], **changes, "workdir": workdir}
    return [*before, _command("train", flags)]


def _command(script: str, flags: Mapping[str, Any]) -> str:
    words = [shlex.quote(f"--{name}={value}") for name, value in flags.items()]
    return " ".join([f"python {script}.py", *words])


# --- Pictures -----------------------------------------------------------------------------


def picture_name(title: str) -> str:
    words = title.replace(", ", "-")
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in words) + ".png"


def draw(title: str, results: Mapping[str, Result], path: Path) -> None:
    """Validation metrics of runs on the same data, against the step."""
    panels = collections.defaultdict(dict)
    for name, result in results.items():
        for metric, curve in result["curve"].items():
            if curve:
                panels[f"validation {label(metric)}"][name] = curve
    write_curves(path, title, panels or {"no curves": {}})


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
