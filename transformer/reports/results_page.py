"""RESULTS.md and its pictures, from the files of the ledger: `python -m transformer results`."""

import collections
import dataclasses
import itertools
import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.decoding.config import DecodingConfig
from transformer.reports import ledger
from transformer.reports.ledger import Result
from transformer.reports.plots import label, write_curves
from transformer.reports.results import checkpoint_flags, search_flags
from transformer.runs import history
from transformer.runs.history import Run
from transformer.runs.provenance import PACKAGES, ROOT
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.tasks.task import find_task

RESULTS = ROOT / "results"


def results_page(folder: Path) -> str:
    """The text of RESULTS.md; raises UserError for a file that is not a result."""
    intro, earlier = (
        [path.read_text(encoding="utf-8")] if path.exists() else []
        for path in (folder / "intro.md", folder / "earlier.md")
    )
    sections = [_section(title, results) for title, results in by_data(folder).items()]
    sections += [_sweep(name, results) for name, results in sweeps(folder).items()]
    return "\n".join([*intro, *sections, *earlier])


def by_data(folder: Path) -> dict[str, dict[str, Result]]:
    """The results by name, for each kind of data."""
    found = collections.defaultdict(dict)
    for name, result in of_folder(folder).items():
        found[_data(result)][name] = result
    return found


def _data(result: Result) -> str:
    config = result["config"]
    data = config.get("data.dataset") or f"text files {result['data_sha256']['train'][:8]}"
    languages = " to ".join(v for k, v in config.items() if k.endswith("_language"))
    return ", ".join(filter(None, [data, languages]))


def of_folder(folder: Path) -> dict[str, Result]:
    """The results in a folder by name; raises UserError for a file that is not a result."""
    found = {path.stem: ledger.read(path) for path in sorted(folder.glob("*.json"))}
    for name, result in found.items():
        metric = _main_metric(result)
        if any(metric not in entry["scores"] for entry in result["splits"].values()):
            raise UserError(f"the result {name} lacks a score {metric}; restore it")
    return found


def sweeps(folder: Path) -> dict[str, dict[str, Result]]:
    """The results by name, for each sweep: those in a folder of its own."""
    folders = sorted({path.parent for path in folder.glob("*/*.json")})
    return {path.name: of_folder(path) for path in folders}


def by_row(results: Mapping[str, Result]) -> dict[str, list[Result]]:
    """The results of a sweep by row; raises UserError for a name that does not end in its seed."""
    found = collections.defaultdict(list)
    for name, result in results.items():
        row, _, seed = name.rpartition("-")
        if not row or seed != str(result["seed"]):
            raise UserError(
                f"the result {name} is no run of a sweep; its name must end in -{result['seed']}, "
                "its seed"
            )
        found[row].append(result)
    return found


def _sweep(name: str, results: Mapping[str, Result]) -> str:
    """The section of a sweep, a line for each row: dozens of runs would hide the others."""
    entries = [(r, _main_metric(r), e) for r in results.values() for e in r["splits"].values()]
    columns = list(dict.fromkeys((metric, entry["name"]) for _, metric, entry in entries))
    heads = [f"{label(metric)}, {split}" for metric, split in columns]
    rows, groups = [["Row", "Parameters", "Seeds", "Updates", *heads]], by_row(results)
    for row, group in groups.items():
        size = ", ".join(_each_once(f"{result['parameters'] / 1e6:.1f} M" for result in group))
        updates = ", ".join(_each_once(f"{result['steps']:,}" for result in group))
        means = [
            _mean([result for result in group if _main_metric(result) == metric], split)
            for metric, split in columns
        ]
        rows.append([row + _mark(group), size, f"{len(group)}", updates, *means])
    flags = {"config": f"configs/sweeps/{name}.py"}
    if len(groups) > 1:  # facts of all rows were stated for all of them
        of_each = [set(result["overrides"].items()) for result in results.values()]
        shared = set.intersection(*of_each)
        flags |= {f"config.{field}": value for field, value in sorted(shared)}
    command = _command("sweep", flags | {"results": f"results/{name}"})
    runs = [run for result in results.values() for run in ledger.all_runs(result)]
    starts = [start for run in runs for start in run["starts"]]
    signatures = _each_once(
        score["signature"]
        for _, metric, entry in entries
        if "signature" in (score := entry["scores"][metric])
    )
    notes = [
        f"Of {'; '.join(_each_once(map(_data, results.values())))}.",
        *[f"`{signature}`" for signature in signatures],
        f"Commit {', '.join(_each_once(x['commit'] for x in starts))}; "
        f"{', '.join(_hardware(starts))}.",
        *_each_once(map(_versions, starts)),
        *_each_once(note for result in results.values() for note in result.get("notes", [])),
        *_failed(results),
    ]
    lines = [f"## Sweep {name}", "", *_table(rows), "", "```", command, "```", ""]
    return "\n".join([*lines, *[f"- {note}" for note in notes]]) + "\n"


def _section(title: str, results: Mapping[str, Result]) -> str:
    splits = _each_once(e["name"] for result in results.values() for e in result["splits"].values())
    metric = label(_main_metric(next(iter(results.values()))))
    scores = [f"{metric}, {split}" for split in splits]

    # 1. Mean and standard deviation of results that differ only in the seed.
    groups = collections.defaultdict(dict)
    for result in results.values():
        seeds = [tuple(one["seed"] for one in history.lineage(r)) for r in ledger.runs(result)]
        groups[_all_but_the_seed(result)].setdefault(tuple(sorted(seeds)), result)
    rows = [["Config", "Parameters", "Seeds", *scores]]
    for group in map(list, map(dict.values, groups.values())):
        parameters = f"{group[0]['parameters'] / 1e6:.1f} M"
        means = [_mean(group, split) for split in splits]
        rows.append([_title(group[0]) + _mark(group), parameters, f"{len(group)}", *means])
    lines = [f"## {title}", "", *_table(rows)]
    for sentence in _failed(results):
        lines += ["", sentence]

    # 2. The results.
    lines += ["", f"![Learning curves](results/{picture_name(title)})", ""]
    columns = ["Run", "Commit", "Hardware", "Trained", "Updates", "Target tokens", "Checkpoint"]
    rows = [[*columns, *scores]]
    for name, result in results.items():
        found = [_mean([result], split) for split in splits]
        linked = f"[{name}](results/{name}.json){_mark([result])}"
        rows.append([linked, *_training(result), *found])
    lines += _table(rows)

    # 3. The commands that reproduce each of them.
    for name, result in results.items():
        text, tokenizers = result["data_sha256"]["train"], result["tokenizer_sha256"]
        notes = [
            *map(_scores, result["splits"].values()),
            *_each_once(_versions(run["starts"][-1]) for run in ledger.all_runs(result)),
            f"SHA-256 of the training text {text[:16]}, of the tokenizer "
            f"{', '.join(h[:16] for h in tokenizers)}.",
            *result.get("notes", []),
        ]
        lines += ["", f"### {name}", "", "```", *commands(name, result), "```", ""]
        lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _mark(results: Iterable[Result]) -> str:
    return " **(failed)**" if any("failed" in result for result in results) else ""


def _failed(results: Mapping[str, Result]) -> list[str]:
    """The reasons why runs say nothing about their models, in sentences that people wrote there."""
    return [f"**{name} failed.** {r['failed']}" for name, r in results.items() if "failed" in r]


def _all_but_the_seed(result: Result) -> str:
    hashes = {name: value for name, value in result.items() if name.endswith("_sha256")}
    configs = [run["config"] | {"training.seed": None} for run in ledger.all_runs(result)]
    origins = [
        [one["checkpoint"], len(one["checkpoint_steps"]), one["starts"][-1].get("data")]
        for run in ledger.runs(result)
        for one in history.lineage(run)[:-1]
    ]
    search, candidates = search_flags(result), sorted(result["candidates"])
    return json.dumps([hashes, configs, origins, search, candidates], sort_keys=True)


def _title(result: Result) -> str:
    titles = [_title_of_run(run) for run in ledger.runs(result)]
    ensemble = f"ensemble of {len(titles)} runs: " if len(titles) > 1 else ""
    flags = [f"`--{k}={v}`" for k, v in _changed_search(result).items()]
    return ", ".join([ensemble + " and ".join(_each_once(titles)), *flags])


def _changed_search(result: Result) -> dict[str, Any]:
    """The search flags that differ from the run's config."""
    defaults = {field.name: field.default for field in dataclasses.fields(DecodingConfig)}
    return {
        name: value
        for name, value in search_flags(result).items()
        # Configs of earlier commits lack the newer fields.
        if value != result["config"].get(f"decoding.{name}", defaults[name])
    }


def _title_of_run(run: Run) -> str:
    changes = {k: v for k, v in run["overrides"].items() if k != "training.init_from"}
    title = ", ".join([f"`{run['config_file']}`", *(f"`{k}={v}`" for k, v in changes.items())])
    if origin := run.get("init_from"):
        title += f", begun with the {origin['checkpoint']} of ({_title_of_run(origin)})"
    return title


def _training(result: Result) -> list[str]:
    """The training and the checkpoint of a result; the training of several runs in total."""
    runs = ledger.all_runs(result)
    starts = [start for run in runs for start in run["starts"]]
    hours, minutes = divmod(round(sum(run["training_seconds"] for run in runs) / 60), 60)
    steps = [run["checkpoint_steps"] for run in ledger.runs(result)]
    checkpoint = f"average of {len(steps[0])}"
    if len(steps[0]) == 1:
        of_each = ", ".join(_each_once(str(step) for (step,) in steps))
        checkpoint = f"{result['checkpoint']}, step {of_each}"
    candidates = ", ".join(f"{name} {score:.2f}" for name, score in result["candidates"].items())
    return [
        ", ".join(_each_once(start["commit"] for start in starts)),
        ", ".join(_hardware(starts)),
        f"{hours} h {minutes} min" if hours else f"{minutes} min",
        " + ".join(f"{run['steps']:,}" for run in runs),
        f"{sum(run['target_tokens'] for run in runs) / 1e6:.1f} M",
        f"{checkpoint} (validation: {candidates})",
    ]


def _hardware(starts: Iterable[Mapping[str, Any]]) -> list[str]:
    return _each_once(s["cpu"] if s["device"].endswith("cpu") else s["device"] for s in starts)


def _main_metric(result: Result) -> str:
    return find_task(result["config"]["task.name"]).main_metric


def _mean(results: Sequence[Result], split: str) -> str:
    entries = [(_main_metric(r), e) for r in results for e in r["splits"].values()]
    return mean_and_deviation([e["scores"][m]["score"] for m, e in entries if e["name"] == split])


def mean_and_deviation(scores: Sequence[float]) -> str:
    """A string such as "41.00 ± 1.41"; "41.00" for one score, "-" for none."""
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{deviation}" if scores else "-"


def _each_once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _scores(entry: Mapping[str, Any]) -> str:
    """The scores of a split with their signatures, once for scores that share one."""
    by_signature = itertools.groupby(
        entry["scores"].items(), lambda named: named[1].get("signature")
    )
    scores = [
        ", ".join(f"{name} {score['score']:.2f}" for name, score in group)
        + (f" `{signature}`" if signature else "")
        for signature, group in by_signature
    ]
    return f"{entry['name']}, {entry['examples']} examples: {'; '.join(scores)}."


def _versions(start: Mapping[str, Any]) -> str:
    shown = [f"{name} {start[name]}" for name in PACKAGES if start.get(name)]
    return f"Python {start['python']}, {', '.join(shown)}."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *others = rows
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *others)]


# --- Commands -----------------------------------------------------------------------------


def commands(name: str, result: Result) -> list[str]:
    """The commands that train the run or runs of a result again, and score them."""
    lines, workdirs, models = [], [], []  # models: runs that others begin with
    runs, trained = ledger.runs(result), ledger.all_runs(result)
    for number, run in enumerate(trained):
        workdir = f"runs/{name}.{number}" if len(trained) > 1 else f"runs/{name}"
        fields = run["overrides"] | {"training.seed": run["seed"]}
        if "init_from" in run:
            fields["training.init_from"] = models[trained.index(run["init_from"])]
        changes = {f"config.{field}": value for field, value in fields.items()}
        flags = {"config": run["config_file"], **changes, "workdir": workdir}
        lines.append(_command("train", flags))
        workdirs.append(workdir)
        models.append(workdir)
        if run not in runs and run["checkpoint"] != "best":  # training.init_from takes the best
            models[-1] += f".{run['checkpoint']}"
            flags = {"workdir": workdir, **checkpoint_flags(run), "export": models[-1]}
            lines.append(_command("evaluate", flags))
    first, *others = [workdirs[trained.index(run)] for run in runs]
    ensemble = {"ensemble": ",".join(others)} if others else {}
    search = search_flags(result)
    shown = {name: search[name] for name in ("beam_size", "length_penalty") if name in search}
    flags = checkpoint_flags(result) | shown | _changed_search(result)
    for split in [s for s in result["splits"] if s != "validation"] or ["validation"]:
        lines.append(_command("evaluate", {"workdir": first, **ensemble, "split": split, **flags}))
    return lines


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


def write() -> None:
    """Writes RESULTS.md and its pictures."""
    write_atomically(ROOT / "RESULTS.md", results_page(RESULTS))
    for title, results in by_data(RESULTS).items():
        draw(title, results, RESULTS / picture_name(title))
