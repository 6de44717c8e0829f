"""Self-contained HTML pages: one file each, without scripts and without a network."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import matplotlib.image
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem;
  color: #1a1a1a; background: #fff; }
h1, h2, h3, p, summary { overflow-wrap: anywhere; }
h2 { margin-top: 2rem; }
table { border-collapse: collapse; }
.wide { overflow-x: auto; }
td, th { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg, img { max-width: 100%; height: auto; }
.panels { display: flex; flex-wrap: wrap; gap: .5rem; }
.panels svg { flex: 0 1 32rem; min-width: 0; }
.runs span { white-space: nowrap; margin-right: 1.2rem; }
bdi { overflow-wrap: break-word; }
.quiet { color: #5b5b5b; font-size: .9rem; }
img.weights { width: 9rem; image-rendering: pixelated; border: 1px solid #bbb; }
@media print { body { max-width: none; } }
"""


class Html(str):
    """Text that already is HTML; `cell` does not escape it."""


def page(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page; the title is text, the body HTML."""
    head = f'<meta charset="utf-8"><title>{text(title)}</title><style>{STYLE}{style}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    safe = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    content = "\n".join(body)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}{view}{safe}</head>'
        f"<body>{content}</body></html>\n"
    )


def text(value: Any) -> str:
    return html.escape(str(value))


def shown(value: Any) -> str:
    """A number in few digits."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table; cells are text, or Html."""

    def cell(value: Any) -> str:
        if isinstance(value, Html):
            return f"<td>{value}</td>"
        is_number = str(value).replace(",", "").replace(".", "").lstrip("-").isdecimal()
        return f"<td{' class=n' if is_number else ''}><bdi>{text(value)}</bdi></td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    return f'<div class="wide"><table><tr>{names}</tr>{body}</table></div>'


def panels(
    count: int, columns: int = 2, height: float = 3, width: float = 11
) -> tuple[Figure, list[Any]]:
    """A figure of many panels, and the axes of each."""
    # No pyplot: it keeps global state and may look for a display.
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in places:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[count:]:
        axes.axis("off")
    return figure, places[:count]


def svg(figure: Figure) -> Html:
    """The figure as SVG; no date or random names, so the same figure gives the same text."""
    picture = io.StringIO()
    with rc_context({"svg.hashsalt": "transformer"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    found = picture.getvalue()
    return Html(found[found.index("<svg") :])


def png(figure: Figure, dpi: int = 110) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    return picture.getvalue()


def image(content: bytes, about: str, style: str = "") -> Html:
    """An img element that contains a PNG. about: a description for those who cannot see it."""
    data = base64.b64encode(content).decode()
    kind = f' class="{style}"' if style else ""
    return Html(f'<img{kind} alt="{text(about)}" src="data:image/png;base64,{data}">')


def thumbnail(weights_TS: np.ndarray, about: str) -> Html:
    """Weights from 0 to 1 as a small picture, a pixel each."""
    content = io.BytesIO()
    matplotlib.image.imsave(content, weights_TS, cmap="Blues", vmin=0, vmax=1, format="png")
    return image(content.getvalue(), about, "weights")
