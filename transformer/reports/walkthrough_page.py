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
pre { overflow-x: auto; font: 12px/1.45 ui-monospace, monospace; background: #f6f6f6;
  padding: .6rem; }
pre span.line { display: block; } pre span.used { background: #fff2b8; }
pre span:target { outline: 2px solid #0b4f9e; }
"""


class Matrix(NamedTuple):
    """Numbers in rows and columns. columns: their names, or empty to number them."""

    name: str
    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str] = ()
    digits: int = 2


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


class Source(NamedTuple):
    """The text of a function, and its location."""

    path: str
    first: int
    lines: list[str]


def source_of(function: Callable[..., Any]) -> Source:
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    path = Path(inspect.getsourcefile(inspect.unwrap(function)))
    return Source(path.resolve().relative_to(ROOT).as_posix(), first, lines)


def number_of(line: Line) -> int:
    """The line's number in its file; raises ValueError if the code has changed."""
    source = source_of(line.function)
    found = [i for i, own in enumerate(source.lines) if line.fragment in own]
    if not found:
        raise ValueError(f"{source.path}:{line.function.__qualname__} has no {line.fragment!r}")
    return source.first + found[0]


def walkthrough_page(title: str, intro: str, parts: dict[str, Sequence[Step]]) -> str:
    """One self-contained page. parts: steps by the heading above them."""
    body = [f"<h1>{text(title)}</h1><p>{text(intro)}</p>"]
    used: dict[Callable[..., Any], set[int]] = {}
    for heading, steps in parts.items():
        body.append(f"<h2>{text(heading)}</h2>")
        for number, step in enumerate(steps, 1):
            links = []
            for line in step.code:
                at = number_of(line)
                used.setdefault(line.function, set()).add(at)
                path = source_of(line.function).path
                links.append(f'<a href="#{_anchor(path, at)}">{text(path)}, line {at}</a>')
            body.append(f"<h3>{number}. {text(step.title)}</h3>")
            if step.equation:
                body.append(f'<p class="equation">{text(step.equation)}</p>')
            body.append(f"<p>{text(step.said)}</p>")
            shown = [matrix_table(x) if isinstance(x, Matrix) else x for x in step.shown]
            body.append(f'<div class="matrices">{"".join(shown)}</div>')
            if links:
                body.append(f'<p class="quiet">Code: {"; ".join(links)}</p>')
    body.append("<h2>The code</h2><p>Marked are the lines that the steps name.</p>")
    body += [_listing(source_of(function), lines) for function, lines in used.items()]
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
        number = f"{value:.{matrix.digits}f}".replace("-", "−")
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


def _anchor(path: str, line: int) -> str:
    return f"{path.replace('/', '-').removesuffix('.py')}-{line}"


def _listing(source: Source, used: set[int]) -> str:
    lines = "".join(
        f'<span id="{_anchor(source.path, number)}" class="{kind}">'
        f"{number:4} {text(line.rstrip())}</span>"
        for number, line in enumerate(source.lines, source.first)
        for kind in ["line used" if number in used else "line"]
    )
    return f"<h3>{text(source.path)}</h3><pre>{lines}</pre>"
