"""The table and the plot of a sweep, at any time."""

import io
import math
import re
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from transformer.models.functional import num_params
from transformer.reports import run_report
from transformer.reports.pages import shown
from transformer.reports.plots import style
from transformer.runs import run_config
from transformer.runs.launcher import Launcher
from transformer.runs.sweep import SEED, Run
from transformer.system.errors import UserError
from transformer.system.files import write_named

# Columns that a table leaves out unless they are requested.
_REST = ("last ", "million ", "tokens per ")


class Row(NamedTuple):
    """A row of a sweep: its runs that have begun, and the data of each."""

    name: str
    done: int
    of: int
    runs: list[run_report.Run]
    columns: dict[str, list[Any]]


def rows_of(launcher: Launcher, runs: Sequence[Run]) -> list[Row]:
    """The rows of a sweep from their work directories; reports damaged ones and leaves them out."""
    begun, found = [], []
    for run in runs:
        workdir = launcher.workdir(run)
        if (workdir / "config.json").exists():
            try:
                found.append(_by_column(run_report.run_of(workdir), launcher.evaluations(run)))
                begun.append(run)
            except UserError as error:
                print(f"warning: without {run.name}: {error}", file=sys.stderr)
    columns = run_report.columns(found) if found else {}
    columns.pop(SEED, None)
    rows = []
    for name in dict.fromkeys(run.row for run in runs):
        own = [run for run in runs if run.row == name]
        places = [i for i, run in enumerate(begun) if run.row == name]
        of_row = {column: [values[i] for i in places] for column, values in columns.items()}
        if places:
            of_row["parameters"] = [_parameters(found[places[0]])]
        done = sum(map(launcher.is_done, own))
        rows.append(Row(name, done, len(own), [found[i] for i in places], of_row))
    return rows


def table(
    rows: Sequence[Row], metrics: Sequence[str] = (), form: str = "text"
) -> tuple[list[str], list[list[str]]]:
    """Head and lines; mean and deviation over the seeds that have begun.

    metrics: names of the wanted columns; default: all that matter. Raises UserError for unknown
    ones.
    form: one of tables.FORMATS; csv has plain numbers, and the deviation in a column of its own.
    """
    known = list(dict.fromkeys(column for row in rows for column in row.columns))
    for metric in metrics:
        _check(metric, known)
    columns = metrics or [name for name in known if not name.startswith(_REST)]
    if form == "csv":
        return _plain(rows, columns)
    lines = [
        [row.name, f"{row.done} of {row.of}", *[_cell(row.columns, name) for name in columns]]
        for row in rows
    ]
    return ["row", "done", *columns], lines


def _plain(rows: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    settings = {name for row in rows for run in row.runs for name in run_config.flat(run.config)}
    measured = set(columns) - settings - {"parameters"}
    head, lines = ["row", "done", "runs"], []
    for name in columns:
        head += [name, f"{name} deviation"] if name in measured else [name]
    for row in rows:
        lines.append([row.name, str(row.done), str(row.of)])
        for name in columns:
            value, deviation = _mean(row.columns, name)
            lines[-1].append(str(value))
            if name in measured:
                lines[-1].append("" if deviation is None else str(deviation))
    return head, lines


def plot(rows: Sequence[Row], metric: str, path: Path) -> None:
    """Draws a metric into a PNG file.

    A metric of metrics.jsonl, such as eval/validation/bleu, gives a curve for each row: the mean of
    the seeds so far, and a band of one deviation. A column of the table, such as `test bleu`, gives
    a point for each row.
    """
    known = [name for row in rows for name in row.columns]
    is_curve = "/" in metric and metric not in known  # a test set may be wmt14/full
    figure = Figure(figsize=(9, 5 if is_curve else 1.5 + 0.3 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if is_curve:
        _check(
            metric, sorted({m for row in rows for run in row.runs for x in run.metrics for m in x})
        )
        for number, row in enumerate(rows):
            _curve(axes, row, metric, number)
        axes.set_xlabel("step (updates)")
        axes.set_ylabel(metric)
        axes.legend(frameon=False, fontsize=8, ncols=1 + len(rows) // 12)
    else:
        _check(metric, known)
        for place, row in enumerate(rows):
            values = _numbers(row.columns, metric)
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else 0.0
                mean = statistics.mean(values)
                axes.errorbar(mean, place, xerr=deviation, fmt="o", color="C0", capsize=3)
                axes.plot(values, [place] * len(values), ".", color="0.6", zorder=0)
        axes.set_yticks(range(len(rows)), [row.name.replace("$", r"\$") for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(metric)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_named(path, picture.getvalue())


def _by_column(run: run_report.Run, own: Collection[str]) -> run_report.Run:
    """The scores, by the names of their columns.

    own: the folders of the sweep's own evaluations; empty if not known.

    A split's plain name is for the sweep's own evaluation of it. If there is none, it is for the
    evaluation with default settings; failing that, and if `own` is empty, for the newest
    checkpoint. The others are named after their folders, without the last step of an average, in
    which seeds differ. A default evaluation beside the sweep's own is <split>-default. Translations
    by others (evaluate.py --hypotheses) are not scores of the run.
    """
    scores = {name: x for name, x in run.scores.items() if "hypotheses" not in x}
    by_split: dict[str, list[str]] = {}
    for name in sorted(scores, key=lambda name: _last_step(scores[name])):
        split = scores[name].get("split")
        by_split.setdefault(split if isinstance(split, str) else name, []).append(name)
    plain = {}
    for split, names in by_split.items():
        of_sweep, by_default = [name for name in names if name in own], split.replace("/", "_")
        if of_sweep:
            plain[split] = of_sweep[-1]
        elif by_default in names:
            plain[split] = by_default
        elif not own:
            plain[split] = names[-1]
    columns = {split: scores[name] for split, name in plain.items()}
    for names in by_split.values():
        for name in names:
            column = re.sub(r"(-average-\d+)-at-\d+", r"\1", name)
            if name not in plain.values():
                columns[f"{column}-default" if column in plain else column] = scores[name]
    return run._replace(scores=columns)


def _last_step(scores: Mapping[str, Any]) -> int:
    steps = scores.get("checkpoint_steps")
    steps = [step for step in steps if isinstance(step, int)] if isinstance(steps, list) else []
    return max(steps, default=-1)


def _curve(axes: Any, row: Row, metric: str, number: int) -> None:
    by_step: dict[int, list[float]] = {}
    for run in row.runs:
        for step, value in run.curve(metric):
            if math.isfinite(value):
                by_step.setdefault(step, []).append(value)
    if not by_step:
        return
    steps = sorted(by_step)
    means = [statistics.mean(by_step[step]) for step in steps]
    look = style(number, len(steps))
    axes.plot(steps, means, label=row.name.replace("$", r"\$"), linewidth=1.2, **look)
    wide = [statistics.stdev(x) if len(x := by_step[step]) > 1 else 0.0 for step in steps]
    lower, upper = ([m + sign * w for m, w in zip(means, wide)] for sign in (-1, 1))
    axes.fill_between(steps, lower, upper, color=look["color"], alpha=0.15, linewidth=0)


def _parameters(run: run_report.Run) -> int | None:
    try:
        model = run.config.kind.restore(run.config, run.workdir).model
    except UserError:  # the tokenizer does not exist yet
        return None
    return num_params(model.abstract_params())


def _numbers(columns: Mapping[str, list[Any]], name: str) -> list[float]:
    values = columns.get(name, [])
    return [x for x in values if isinstance(x, int | float) and math.isfinite(x)]


def _mean(columns: Mapping[str, list[Any]], name: str) -> tuple[Any, float | None]:
    """Mean over seeds, or the one value, and the deviation of several; "" if there is none."""
    values = [x for x in columns.get(name, []) if x is not None]
    if any(isinstance(x, str | bool) for x in values):  # seeds may have other fields
        return ", ".join(dict.fromkeys(map(shown, values))), None
    finite = _numbers(columns, name)
    if len(set(finite)) < 2:  # a setting, or one seed
        return ([*finite, *values] or [""])[0], 0.0 if len(finite) > 1 else None
    return float(statistics.mean(finite)), statistics.stdev(finite)


def _cell(columns: Mapping[str, list[Any]], name: str) -> str:
    value, deviation = _mean(columns, name)
    return f"{shown(value)} ± {deviation:.2g}" if deviation else shown(value)


def _check(metric: str, known: Sequence[str]) -> None:
    if metric not in known:
        names = ", ".join(dict.fromkeys(known)) or "none yet"
        raise UserError(f"no run has the metric {metric!r}; there are: {names}")
