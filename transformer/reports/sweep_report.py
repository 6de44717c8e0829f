"""The table of a sweep, at any time."""

import math
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer.models.functional import num_params
from transformer.reports import run_report
from transformer.reports.pages import shown
from transformer.runs.launcher import Launcher
from transformer.runs.sweep import SEED, Run
from transformer.system.errors import UserError

# Columns that a table leaves out unless they are requested.
_REST = ("last ", "million ", "tokens per ")


class Row(NamedTuple):
    """A row of a sweep. columns: a value for each of its runs that have begun."""

    name: str
    done: int
    of: int
    seeds: list[int]
    columns: dict[str, list[Any]]


def rows_of(launcher: Launcher, runs: Sequence[Run]) -> list[Row]:
    """The rows of a sweep from their work directories; reports damaged ones and leaves them out."""
    begun, found = [], []
    for run in runs:
        workdir = launcher.workdir(run)
        if (workdir / "config.json").exists():
            try:
                found.append(_by_column(run_report.run_of(workdir)))
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
            of_row["parameters"] = [_parameters(found[places[0]])] * len(places)
        done = sum(map(launcher.is_done, own))
        rows.append(Row(name, done, len(own), [begun[i].seed for i in places], of_row))
    return rows


def table(
    rows: Sequence[Row], metrics: Sequence[str] = (), form: str = "text"
) -> tuple[list[str], list[list[str]]]:
    """Head and lines; mean and deviation over the seeds that have begun.

    metrics: names of the wanted columns; default: all that matter. Raises UserError for unknown
    ones.
    form: one of tables.FORMATS; csv has a line for each run, and plain numbers.
    """
    known = list(dict.fromkeys(column for row in rows for column in row.columns))
    for metric in metrics:
        if metric not in known:
            names = ", ".join(known) or "none yet"
            raise UserError(f"no run has the metric {metric!r}; there are: {names}")
    columns = metrics or [name for name in known if not name.startswith(_REST)]
    if form == "csv":
        lines = []
        for row in rows:
            for i, seed in enumerate(row.seeds):
                values = [row.columns[name][i] for name in columns]
                cells = ["" if value is None else str(value) for value in values]
                lines.append([row.name, str(seed), *cells])
        return ["row", "seed", *columns], lines
    lines = [
        [row.name, f"{row.done} of {row.of}", *(_cell(row.columns, name) for name in columns)]
        for row in rows
    ]
    return ["row", "done", *columns], lines


def _by_column(run: run_report.Run) -> run_report.Run:
    """The scores, by the names of their columns: those of their folders, which seeds may share.

    So the last step of an average is left out, and -last stands for the step of the last update.
    Of several averages the newest counts. Translations by others (evaluate.py --hypotheses) are no
    scores of the run.
    """
    last = max((line["step"] for line in run.metrics), default=None)
    averages = re.compile(r"(-average-\d+|-ema)-at-(\d+)")
    steps = {name: int(match[2]) if (match := averages.search(name)) else 0 for name in run.scores}
    scores = {
        re.sub(rf"-step-{last}\b", "-last", averages.sub(r"\1", name)): run.scores[name]
        for name in sorted(run.scores, key=steps.__getitem__)
        if "hypotheses" not in run.scores[name]
    }
    return run._replace(scores=scores)


def _parameters(run: run_report.Run) -> int | None:
    try:
        model = run.config.kind.restore(run.config, run.workdir).model
    except UserError:  # the tokenizer does not exist yet
        return None
    return num_params(model.abstract_params())


def _numbers(columns: dict[str, list[Any]], name: str) -> list[float]:
    values = columns.get(name, [])
    return [x for x in values if isinstance(x, int | float) and math.isfinite(x)]


def _cell(columns: dict[str, list[Any]], name: str) -> str:
    """Mean and deviation of several numbers; other values as they are, each once."""
    values = [x for x in columns.get(name, []) if x is not None]
    finite = _numbers(columns, name)
    if any(isinstance(x, str | bool) for x in values) or len(set(finite)) < 2:
        return ", ".join(dict.fromkeys(map(shown, finite or values)))
    return f"{shown(float(statistics.mean(finite)))} ± {statistics.stdev(finite):.2g}"
