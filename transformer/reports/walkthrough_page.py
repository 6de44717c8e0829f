"""The page of a walk-through: steps with an equation, numbers, and their lines of code."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer.reports import pages
from transformer.reports.pages import Html, text
from transformer.runs.provenance import ROOT

MOST_ROWS, MOST_COLUMNS = 14, 8  # of a matrix that are shown

STYLE = """
table.matrix { margin: .4rem 1.2rem .8rem 0; }
table.matrix td { text-align: right; font: 13px/1.3 ui-monospace, monospace; padding: .1rem .3rem;
  border: 0; }
table.matrix th { font-weight: normal; font-size: .8rem; padding: .1rem .4rem; border: 0;
  color: #5b5b5b; text-align: right; }
.matrices { display: flex; flex-wrap: wrap; }
figure { margin: 0; max-width: 100%; overflow-x: auto; }
figcaption { font-size: .85rem; }
.equation { font: 1.05rem Georgia, serif; margin: .3rem 0 .3rem 1rem; }
code { font: 12px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
"""


class Matrix(NamedTuple):
    """Numbers in rows and columns. columns: their names, or empty to number them."""

    name: str
    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str] = ()


class Line(NamedTuple):
    """A code line: the one with this fragment in a function or method."""

    function: Callable[..., Any]
    fragment: str


class Step(NamedTuple):
    """equation: as the paper writes it, with its place there; may be empty."""

    title: str
    equation: str
    said: str
    code: Sequence[Line]
    shown: Sequence[Matrix | Html]


def code_of(line: Line) -> str:
    """The line as HTML, after its file and number; raises ValueError if the code has changed."""
    function = inspect.unwrap(line.function)
    path = Path(inspect.getsourcefile(function)).resolve().relative_to(ROOT).as_posix()
    lines, first = inspect.getsourcelines(function)
    for number, own in enumerate(lines, first):
        if line.fragment in own:
            return f"<code>{text(path)}, line {number}: {text(own.strip())}</code>"
    raise ValueError(f"{path}:{line.function.__qualname__} has no {line.fragment!r}")


def walkthrough_page(title: str, intro: str, parts: dict[str, Sequence[Step]]) -> str:
    """One self-contained page. parts: steps by the heading above them."""
    body = [f"<h1>{text(title)}</h1><p>{text(intro)}</p>"]
    for heading, steps in parts.items():
        body.append(f"<h2>{text(heading)}</h2>")
        for number, step in enumerate(steps, 1):
            body.append(f"<h3>{number}. {text(step.title)}</h3>")
            if step.equation:
                body.append(f'<p class="equation">{text(step.equation)}</p>')
            body.append(f"<p>{text(step.said)}</p>")
            shown = [matrix_table(x) if isinstance(x, Matrix) else x for x in step.shown]
            body.append(f'<div class="matrices">{"".join(shown)}</div>')
            lines = "<br>".join(map(code_of, step.code))
            body.append(f'<p class="quiet">Code:<br>{lines}</p>')
    return pages.page(title, body, STYLE)


def matrix_table(matrix: Matrix) -> Html:
    """A matrix as an HTML table, with blue for positive, orange for negative.

    Rows and columns that do not fit are left out, with a note.
    """
    values = np.asarray(matrix.values, np.float32)
    R, C = values.shape
    finite = np.abs(values[np.isfinite(values)])
    most = max(float(finite.max(initial=0)), 1e-9)

    def cell(value: float) -> str:
        if np.isneginf(value):
            return "<td>−∞</td>"
        strength = 100 * abs(value) / most
        colour = "30,110,200" if value >= 0 else "225,120,20"
        number = f"{value:.2f}".replace("-", "−")
        return f'<td style="background:rgba({colour},{0.6 * strength:.0f}%)">{number}</td>'

    columns = list(matrix.columns) or [str(i + 1) for i in range(C)]
    limit = MOST_ROWS if matrix.columns else MOST_COLUMNS
    head = "".join(f"<th><bdi>{text(name)}</bdi></th>" for name in columns[:limit])
    rows = "".join(
        f"<tr><th><bdi>{text(name)}</bdi></th>{''.join(map(cell, row[:limit]))}</tr>"
        for name, row in list(zip(matrix.rows, values, strict=True))[:MOST_ROWS]
    )
    size = f"{R} x {C}"
    if R > MOST_ROWS or limit < C:
        size += f"; here {min(R, MOST_ROWS)} x {min(C, limit)} of it"
    return Html(
        f"<figure><figcaption>{text(matrix.name)} <span class=quiet>({size})</span></figcaption>"
        f'<table class="matrix"><tr><th></th>{head}</tr>{rows}</table></figure>'
    )
