"""RESULTS.md, a page for each row of its table, and pictures, from the files of the ledger.

    python benchmarks/results_page.py

It is for the repository, in which results/ is. docs/results.md says how results get there.
"""

import collections
import dataclasses
import json
import shlex
import statistics
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformer.decoding.config import DecodingConfig
from transformer.reports import ledger
from transformer.reports.ledger import Result
from transformer.reports.plots import curves_figure, label
from transformer.reports.results import checkpoint_flags, search_flags
from transformer.reports.tables import formatted
from transformer.runs import cli, history
from transformer.runs.provenance import PACKAGES, ROOT
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.reading import checked
from transformer.tasks.task import find_task

RESULTS = ROOT / "results"
COLUMNS = "model", "data", "score", "published", "ours"
END = """
Each page has all scores of its row, the commands that reproduce it, hardware and commit.
[docs/results.md](docs/results.md) says how to check a row and how to add one.
"""


def pages(folder: Path) -> dict[str, str]:
    """The texts by file: RESULTS.md, and results/NAME.md for each row, NAME of its first result.

    The folder's rows.toml has words and order of the rows, and whole rows of older results. Raises
    UserError for a file that is not a result, and for words without one.
    """
    path = folder / "rows.toml"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        given = checked(tomllib.loads(text), dict[str, dict[str, str]])
    except ValueError as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    words, nothing = collections.defaultdict(dict, given), dict.fromkeys(COLUMNS, "-")
    rows = {name: nothing | row for name, row in words.items() if "ours" in row}
    texts, failed = {}, []
    for name, results in _by_page(folder).items():
        rows[name] = _row(name, results) | words[name]
        texts[f"results/{name}.md"] = _page(rows[name], name, results)
        failed += _failed(results)
    if wrong := sorted(set().union(words, *words.values()) - {*rows, *COLUMNS}):
        raise UserError(f"{path} has {', '.join(wrong)}; there is no such result or column")
    head = [*map(str.capitalize, COLUMNS), "Page"]
    table = [[*map(rows[n].get, COLUMNS), f"[{n}](results/{n}.md)"] for n in words | rows]
    lines = ["# Results", "", formatted(head, table, "md") + "\n".join(failed), END]
    return {"RESULTS.md": "\n".join(lines)} | texts


def _by_page(folder: Path) -> dict[str, dict[str, Result]]:
    """The results of each page: those that differ only in the seed, or those of a sweep."""
    groups = collections.defaultdict(dict)
    for name, result in of_folder(folder).items():
        groups[_all_but_the_seed(result)][name] = result
    return {next(iter(group)): group for group in groups.values()} | sweeps(folder)


def _by_line(name: str, results: Mapping[str, Result]) -> dict[str, list[Result]]:
    """The results of each line of a page's table."""
    if name not in results:  # a sweep
        return by_row(results)
    lines, seeds = {f"[{name}]({name}.json)": [result] for name, result in results.items()}, {}
    for result in results.values():
        lineages = [tuple(run["seed"] for run in history.lineage(r)) for r in ledger.runs(result)]
        seeds.setdefault(tuple(sorted(lineages)), result)
    return lines | ({"all": [*seeds.values()]} if len(seeds) > 1 else {})


def _row(name: str, results: Mapping[str, Result]) -> dict[str, str]:
    """A row of RESULTS.md, as far as the results say: with the first test split, or validation."""
    first = next(iter(results.values()))
    metric, data = _main_metric(first), _each_once(map(_data, results.values()))
    split = [*[split for split in first["splits"] if split != "validation"], "validation"][0]
    lower = find_task(first["config"]["task.name"]).metrics[metric].better == "lower"
    score = f"{label(metric)}, {first['splits'][split]['name']}{' (lower is better)' * lower}"
    *_, scores = found = [
        [
            r["splits"][split]["scores"][_main_metric(r)]["score"]
            for r in line
            if split in r["splits"]
        ]
        for line in _by_line(name, results).values()
    ]
    ours = mean_and_deviation(scores) + f" ({len(scores)} seeds)" * (len(scores) > 1)
    if name not in results:
        means = sorted(map(statistics.mean, filter(None, found)))
        ours = f"{means[0]:.2f} to {means[-1]:.2f} ({len(means)} rows)"
    ours += _mark(results.values())
    return dict(model=name, data="; ".join(data), score=score, published="-", ours=ours)


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
            ending = f"its name must end in -{result['seed']}, its seed"
            raise UserError(f"the result {name} is no run of a sweep; {ending}")
        found[row].append(result)
    return found


def _page(row: Mapping[str, str], name: str, results: Mapping[str, Result]) -> str:
    lines = [f"# {row['model']}", *_failed(results), "", f"Data: {row['data']}.", ""]
    lines += _scores_table(_by_line(name, results))
    if name not in results:
        command = _command("sweep", _sweep_flags(name, results))
        return "\n".join([*lines, *_section([command], results, [])]) + "\n"
    lines += ["", f"![Learning curves on this data]({picture_name(_data(results[name]))})"]
    for one, result in results.items():
        text, tokenizers = result["data_sha256"]["train"], result["tokenizer_sha256"]
        steps = [", ".join(map(str, run["checkpoint_steps"])) for run in ledger.runs(result)]
        chosen = ", ".join(f"{name} {score:.2f}" for name, score in result["candidates"].items())
        notes = [
            *map(_scores, result["splits"].values()),
            f"Checkpoint {result['checkpoint']}, of step {'; '.join(_each_once(steps))}. On "
            f"validation: {chosen}.",
            f"SHA-256 of the training text {text[:16]}, of the tokenizer "
            f"{', '.join(h[:16] for h in tokenizers)}.",
        ]
        lines += ["", f"## {one}", *_section(commands(one, result), {one: result}, notes)]
    return "\n".join(lines) + "\n"


def _section(shell: Sequence[str], results: Mapping[str, Result], notes: list[str]) -> list[str]:
    """Commands, and notes on results: these, signatures, versions, and what people wrote."""
    signed = collections.defaultdict(list)
    for entry in (entry for result in results.values() for entry in result["splits"].values()):
        for metric, score in entry["scores"].items():
            signed[score.get("signature")].append(metric)
    notes = notes + [f"{', '.join(_each_once(names))}: `{s}`" for s, names in signed.items() if s]
    for result in results.values():
        notes += [_versions(run["starts"][-1]) for run in ledger.all_runs(result)]
        notes += result.get("notes", [])
    return ["", "```", *shell, "```", "", *(f"- {note}" for note in _each_once(notes))]


def _scores_table(groups: Mapping[str, Sequence[Result]]) -> list[str]:
    """A line for each group of results, with the mean of its scores on each split."""
    results = [(_main_metric(result), result) for group in groups.values() for result in group]
    columns = _each_once((m, entry["name"]) for m, r in results for entry in r["splits"].values())
    scores = [f"{label(metric)}, {split}" for metric, split in columns]
    training = ["Updates", "Target tokens", "Trained", "Hardware", "Commit"]
    head, rows = ["Run", "Parameters", "Seeds", *scores, *training], []
    for name, group in groups.items():
        size = ", ".join(_each_once(f"{result['parameters'] / 1e6:.1f} M" for result in group))
        means = [_mean(group, metric, split) for metric, split in columns]
        rows.append([name + _mark(group), size, f"{len(group)}", *means, *_training(group)])
    return formatted(head, rows, "md").splitlines()


def _mark(results: Iterable[Result]) -> str:
    return " **(failed)**" if any("failed" in result for result in results) else ""


def _failed(results: Mapping[str, Result]) -> list[str]:
    """The reasons why runs say nothing about their models, in sentences that people wrote there."""
    return [f"\n**{name} failed.** {r['failed']}" for name, r in results.items() if "failed" in r]


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


def _changed_search(result: Result) -> dict[str, Any]:
    """The search flags that differ from the run's config."""
    defaults = {field.name: field.default for field in dataclasses.fields(DecodingConfig)}
    return {
        name: value
        for name, value in search_flags(result).items()
        # Configs of earlier commits lack the newer fields.
        if value != result["config"].get(f"decoding.{name}", defaults[name])
    }


def _training(results: Sequence[Result]) -> list[str]:
    """The training of results, in total."""
    of_each = [ledger.all_runs(result) for result in results]
    runs = [run for trained in of_each for run in trained]
    starts = [start for run in runs for start in run["starts"]]
    hours, minutes = divmod(round(sum(run["training_seconds"] for run in runs) / 60), 60)
    hardware = [s["cpu"] if s["device"].endswith("cpu") else s["device"] for s in starts]
    return [
        ", ".join(_each_once(" + ".join(f"{run['steps']:,}" for run in one) for one in of_each)),
        f"{sum(run['target_tokens'] for run in runs) / 1e6:.1f} M",
        f"{hours} h {minutes} min" if hours else f"{minutes} min",
        "; ".join(_each_once(hardware)),
        ", ".join(_each_once(start["commit"] for start in starts)),
    ]


def _main_metric(result: Result) -> str:
    return find_task(result["config"]["task.name"]).main_metric


def _mean(results: Iterable[Result], metric: str, split: str) -> str:
    entries = [e for r in results if _main_metric(r) == metric for e in r["splits"].values()]
    return mean_and_deviation([e["scores"][metric]["score"] for e in entries if e["name"] == split])


def mean_and_deviation(scores: Sequence[float]) -> str:
    """A string such as "41.00 ± 1.41"; "41.00" for one score, "-" for none."""
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{deviation}" if scores else "-"


def _each_once(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _scores(entry: Mapping[str, Any]) -> str:
    scores = [f"{name} {score['score']:.2f}" for name, score in entry["scores"].items()]
    return f"{entry['name']}, {entry['examples']} examples: {', '.join(scores)}."


def _versions(start: Mapping[str, Any]) -> str:
    shown = [f"{name} {start[name]}" for name in PACKAGES if start.get(name)]
    return f"Python {start['python']}, {', '.join(shown)}."


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


def _sweep_flags(name: str, results: Mapping[str, Result]) -> dict[str, Any]:
    flags, shared = {"config": f"configs/sweeps/{name}.py"}, set()
    if len(by_row(results)) > 1:  # facts of all rows were stated for all of them
        shared = set.intersection(*(set(r["overrides"].items()) for r in results.values()))
    fields = {f"config.{field}": value for field, value in sorted(shared)}
    return flags | fields | {"results": f"results/{name}"}


def _command(script: str, flags: Mapping[str, Any]) -> str:
    words = [shlex.quote(f"--{name}={value}") for name, value in flags.items()]
    return " ".join([f"python {script}.py", *words])


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
    curves_figure(title, panels or {"no curves": {}}).write(path, dpi=130)


def write() -> None:
    """Writes RESULTS.md, its pages and pictures."""
    for name, text in pages(RESULTS).items():
        write_atomically(ROOT / name, text)
    for title, results in by_data(RESULTS).items():
        draw(title, results, RESULTS / picture_name(title))


if __name__ == "__main__":
    cli.run(write)
