"""The table and the page that report.py shows."""

import contextlib
import importlib
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from matplotlib.colors import to_hex

from transformer.reports.pages import page as html_page
from transformer.reports.pages import panels, shown, svg, text
from transformer.reports.pages import table as html_table
from transformer.reports.plots import style
from transformer.reports.translation_report import translations
from transformer.reports.translations import read
from transformer.runs import history, provenance, run_config
from transformer.runs.metric_writers import read_metrics
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.system.reading import MISSING, Number, read_json
from transformer.tasks.task import FACTS, Facts

# Curves beside those of validation, and their names.
OTHER_CURVES = {
    "train/loss": "loss as minimised",
    "train/learning_rate": "learning rate",
    "train/grad_norm": "norm of the gradient",
    "train/tokens_per_second": "tokens per second",
    "input/wait_ms": "waiting for a batch, ms",
}

LONG = 30  # characters of a value whose column is moved to the end


class Score(TypedDict, total=False):
    """One entry of a scores.json; without a score it holds other information."""

    score: Number
    signature: str | None
    definition: str | None


Scores = dict[str, Score | list[Any] | str | bool | Number | None]


class Run(NamedTuple):
    """The record of a run in its work directory, without its parameters."""

    workdir: Path
    config: run_config.Config
    metrics: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]  # scores.json of each evaluated split
    facts: Facts | None  # earlier commits wrote none
    starts: list[dict[str, Any]]
    name: str

    def curve(self, metric: str) -> list[tuple[int, float]]:
        found = [(line["step"], line.get(metric)) for line in self.metrics]
        return [(step, value) for step, value in found if value is not None]

    def total(self, name: str) -> float:
        return history.total(self.metrics, name)


def run_of(workdir: Path) -> Run:
    """Reads a run; raises UserError if there is none."""
    config = run_config.load(workdir)
    path = workdir / "metrics.jsonl"
    found = sorted((workdir / "eval").glob("*/scores.json"))
    found = [path for path in found if not path.parent.is_symlink()]  # eval/latest
    by_split = {
        path.parent.name: read_json(path, workdir, Scores, "evaluate again") for path in found
    }
    facts = None
    with contextlib.suppress(*MISSING):
        facts = Facts(**read_json(workdir / FACTS, workdir, Facts, "remove it"))
    metrics = read_metrics(path) if path.exists() else []
    starts, name = provenance.starts(workdir), workdir.resolve().name
    return Run(workdir, config, metrics, by_split, facts, starts, name)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The config fields in which runs differ, each with its value in every run."""
    flats = [run_config.flat(run.config) for run in runs]
    names = sorted({name for flat in flats for name in flat})
    found = {name: [flat.get(name) for flat in flats] for name in names}
    return {name: values for name, values in found.items() if any(x != values[0] for x in values)}


def columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Tests, best and last validation, settings that differ, and cost: a value for each run.

    Settings with long values, such as paths, are last. None where a run has no such value; a column
    of only None is left out.
    """
    settings = differences(runs) if len(runs) > 1 else {}
    is_long = {name: max(len(str(x)) for x in values) > LONG for name, values in settings.items()}
    scores: dict[str, list[Any]] = {}
    for split in sorted({split for run in runs for split in run.scores}):
        for metric in [*_directions(runs), "chrf"]:
            of_runs = [run.scores.get(split, {}).get(metric) for run in runs]
            scores[f"{split} {metric}"] = [
                x["score"] if isinstance(x, dict) and "score" in x else None for x in of_runs
            ]
    found = scores
    for metric, better in _directions(runs).items():
        curves = [run.curve(f"eval/validation/{metric}") for run in runs]
        pick = min if better == "lower" else max
        best = [pick((v for _, v in c), default=None) for c in curves]
        found[f"best {metric}"] = best
        if metric == "nll":  # it may be large before anything is learned
            found["best perplexity"] = [x if x is None else math.exp(min(x, 100)) for x in best]
        found[f"last {metric}"] = [c[-1][1] if c else None for c in curves]
    found |= {name: values for name, values in settings.items() if not is_long[name]}
    updates = [max((line["step"] for line in run.metrics), default=None) for run in runs]
    found["updates"] = updates
    found["million target tokens"] = [run.total("target_tokens") / 1e6 or None for run in runs]
    found["minutes"] = [run.total("seconds") / 60 or None for run in runs]
    for key in ("train/tokens_per_second", "input/wait_ms"):
        values = [[v for _, v in run.curve(key)] for run in runs]
        found[OTHER_CURVES[key]] = [statistics.median_high(x) if x else None for x in values]
    found |= {name: values for name, values in settings.items() if is_long[name]}
    return {name: x for name, x in found.items() if any(value is not None for value in x)}


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Head and rows, one row for each run."""
    found = columns(runs)
    cells = [["" if value is None else shown(value) for value in x] for x in found.values()]
    rows = zip([run.name for run in runs], *cells, strict=True)
    return ["run", *found], [list(row) for row in rows]


def page(runs: Sequence[Run]) -> str:
    """The HTML of one run, or of several beside each other."""
    title = " and ".join(run.name for run in runs)
    body = [f"<h1>{text(title)}</h1>", html_table(*table(runs))]
    body.append("<h2>Curves</h2>" + _curves(runs))
    for split in sorted({split for run in runs for split in run.scores}):
        those = [run for run in runs if split in run.scores]
        body.append(f"<h2>Scores on {text(split)}</h2>" + _scores(those, split))
        if any(not hasattr(run.config.data, "target_language") for run in those):
            continue  # no translations
        try:
            texts = [read(run.workdir, split) for run in those]
        except UserError as error:  # they were removed, or are a stranger's
            print(f"warning: without the texts of {split}: {error}", file=sys.stderr)
            continue
        is_same = all(x.references == texts[0].references for x in texts)
        if texts[0].sources and is_same:
            body.append(translations(those, texts))
    body.append("<h2>Configs</h2>" if len(runs) > 1 else "<h2>Config</h2>")
    body += [_config(run, named=len(runs) > 1) for run in runs]
    for run in runs:
        if run.facts:
            body.append(f"<h2>The data of {text(run.name)}</h2>" + _data(run.facts))
    return html_page(title, body)


def write(workdir: Path) -> None:
    """Writes WORKDIR/report.html after training. Any error becomes a warning."""
    try:
        write_atomically(workdir / "report.html", page([run_of(workdir)]))
    except Exception as error:  # a page is not worth a failed run
        print(f"warning: no report: {type(error).__name__}: {error}", file=sys.stderr)


def _directions(runs: Sequence[Run]) -> dict[str, str]:
    kinds = [run.config.kind.metrics for run in runs]
    return {name: metric.better for kind in kinds for name, metric in kind.items()}


def _config(run: Run, *, named: bool) -> str:
    """The source of a config, its differences from configs/base.py, and all its fields."""
    base = importlib.import_module("transformer.configs.base").get_config().to_dict()
    usual = {
        f"{section}.{field}": value
        for section, fields in base.items()
        for field, value in fields.items()
    }
    flat, parts = sorted(run_config.flat(run.config).items()), []
    of = f" of {text(run.name)}" if named else ""
    # A run started from Python code has neither.
    if run.starts and {"config_file", "overrides"} <= run.starts[-1].keys():
        start = run.starts[-1]
        said = "".join(f" --config.{name}={value}" for name, value in start["overrides"].items())
        parts.append(f"<p>From <code>{text(start['config_file'] + said)}</code>.</p>")
    changed = [
        [name, shown(value), shown(usual[name]) if name in usual else "(no such field)"]
        for name, value in flat
        if name not in usual or value != usual[name]
    ]
    parts.append(
        f"<details{'' if named else ' open'}><summary>What differs from configs/base.py{of}"
        f"</summary>{html_table(['field', 'here', 'there'], changed)}</details>"
    )
    rows = [[name, shown(value)] for name, value in flat]
    parts.append(
        f"<details><summary>The whole config{of}</summary>"
        f"{html_table(['field', 'value'], rows)}</details>"
    )
    return "".join(parts)


def _curves(runs: Sequence[Run]) -> str:
    """A picture for each quantity; a run has the same colour in all."""
    # For each panel its curves: points, number of the run, and whether they are of training.
    names = ["nats per token", *(x for x in _directions(runs) if x != "nll")]
    by_panel: dict[str, list[tuple[list[tuple[int, float]], int, bool]]] = {
        name: [] for name in [*names, *OTHER_CURVES.values()]
    }
    for number, run in enumerate(runs):
        # Both without label smoothing, though training has dropout.
        keys = [("nats per token", "train/nll", True)]
        for metric in _directions(runs):
            name = "nats per token" if metric == "nll" else metric
            keys.append((name, f"eval/validation/{metric}", False))
        keys += [(name, key, False) for key, name in OTHER_CURVES.items()]
        for name, key, is_training in keys:
            if curve := run.curve(key):
                by_panel[name].append((curve, number, is_training))
    by_panel = {name: curves for name, curves in by_panel.items() if curves}
    if not by_panel:
        return "<p>There are no metrics yet.</p>"
    drawn = []
    for name, curves in by_panel.items():
        figure, (axes,) = panels(1, columns=1, width=5.5)
        for curve, number, is_training in curves:
            look = style(number, len(curve)) | ({"alpha": 0.45} if is_training else {})
            axes.plot(*zip(*curve, strict=True), linewidth=1.2, **look)
        said = " (pale: training)" if any(pale for _, _, pale in curves) else ""
        axes.set_title(f"{name}{said}", fontsize=10)
        axes.set_xlabel("updates", fontsize=8)
        axes.grid(color="0.9")
        drawn.append(svg(figure))
    return f'{_legend(runs)}<div class="panels">{"".join(drawn)}</div>'


def _legend(runs: Sequence[Run]) -> str:
    """The colours of several runs."""
    if len(runs) == 1:
        return ""
    signs = {"-": "━━", "--": "╍╍", ":": "┅┅"}
    looks = [style(number, 1) for number in range(len(runs))]
    entries = [
        f'<span><b style="color:{to_hex(look["color"])}">{signs[look["linestyle"]]}</b> '
        f"<bdi>{text(run.name)}</bdi></span> "
        for run, look in zip(runs, looks, strict=True)
    ]
    return f'<p class="runs">{"".join(entries)}</p>'


def _data(facts: Facts) -> str:
    """Sizes, and the lengths of sentences."""
    rows = html_table(["", ""], [[name, shown(count)] for name, count in facts.counts.items()])
    if not facts.lengths:
        return rows
    figure, places = panels(len(facts.lengths), height=2.6)
    for axes, (name, counts) in zip(places, facts.lengths.items(), strict=True):
        axes.bar(range(len(counts)), counts, width=1.0)
        axes.set_title(name, fontsize=10)
        axes.set_ylabel("how many", fontsize=8)
    return rows + svg(figure)


def _scores(runs: Sequence[Run], split: str) -> str:
    rows = [
        [run.name, metric, f"{found['score']:.2f}", found.get("signature", found.get("definition"))]
        for run in runs
        for metric, found in run.scores[split].items()
        if isinstance(found, dict) and "score" in found
    ]
    return html_table(["run", "metric", "score", "signature or definition"], rows)
