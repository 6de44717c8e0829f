"""Pictures, and self-contained HTML pages: one file each, no scripts, no network."""

import base64
import html
import io
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import font_manager, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from transformer.system.files import write_named

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
@media print { body { max-width: none; } }
"""

NOT_IN_XML = bytes(i for i in range(32) if chr(i) not in "\t\n\r")  # a token may have them


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


class Fonts(NamedTuple):
    """Font families; each letter is drawn in the first family that has it."""

    names: list[str]
    complete: bool  # whether they have all letters


def fonts_for(text: str) -> Fonts:
    """Matplotlib's own font, and those of this machine for letters that it lacks."""

    def characters(path: str) -> set[str]:
        return set(map(chr, font_manager.get_font(path).get_charmap()))

    # Without the characters that only say how others are joined.
    missing = {c for c in text if not c.isspace() and unicodedata.category(c) not in ("Cf", "Mn")}
    names = ["DejaVu Sans"]
    missing -= characters(font_manager.findfont(names[0]))
    for font in font_manager.fontManager.ttflist:
        if not missing:
            break
        if font.name.startswith("Last Resort"):  # it has a box for every character
            continue
        try:
            found = missing & characters(font.fname)
        except (OSError, RuntimeError):  # removed since, or a picture font
            continue
        if found:
            names.append(font.name)
            missing -= found
    return Fonts(names, not missing)


def plain(text: str) -> str:
    """A text for a picture, in which dollar signs do not start a formula."""
    return text.replace("$", r"\$")


class Picture(Figure):
    """A figure that a notebook shows by itself, with the letters of all scripts.

    texts: the strings drawn in it.
    """

    def __init__(self, width: float, height: float, texts: Sequence[str] = ()):
        # No pyplot: it keeps global state and may look for a display.
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)
        self.fonts = fonts_for("".join(texts))
        self.about: dict[str, str] = {}

    def describe(self, title: str, alt: str) -> None:
        """Gives PNG and SVG files a title, and a text for those who cannot see the picture."""
        self.about = {"Title": title, "Description": alt}

    def write(self, path: Path, dpi: int = 150) -> None:
        """Writes a user's file: SVG if its name ends so, else PNG; a pipe may have any name."""
        form = "svg" if path.suffix.lower() == ".svg" else "png"
        write_named(path, self.drawn(form, dpi))

    def drawn(self, form: str, dpi: int = 150) -> bytes:
        """The bytes of a png, svg or pdf file."""
        for text in self.findobj(Text):
            text.set_fontfamily(self.fonts.names)
        # Letters as outlines look alike everywhere. If no font here has all of them, an SVG holds
        # the text and leaves the fonts to the viewer's machine.
        fonttype = "path" if self.fonts.complete else "none"
        content = io.BytesIO()
        # No date and no random names: the same figure gives the same file.
        svg = {"svg.fonttype": fonttype, "svg.hashsalt": "transformer"}
        about = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
        about |= self.about if form != "pdf" else {}
        with rc_context(svg), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            self.savefig(content, format=form, dpi=dpi, metadata=about)
        if form != "svg":
            return content.getvalue()
        found = content.getvalue().translate(None, NOT_IN_XML)
        if not self.about:
            return found
        alt = html.escape(self.about["Description"])
        return found.replace(b"</title>", f"</title><desc>{alt}</desc>".encode(), 1)

    def _repr_png_(self) -> bytes:
        return self.drawn("png")


def panels(
    count: int, columns: int = 2, height: float = 3, width: float = 11
) -> tuple[Picture, list[Any]]:
    """A picture of many panels, and the axes of each."""
    rows = -(-count // columns)
    figure = Picture(width, height * rows)
    places = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in places:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[count:]:
        axes.axis("off")
    return figure, places[:count]


def svg(figure: Picture) -> Html:
    """The picture as a part of a page."""
    found = figure.drawn("svg").decode()
    return Html(found[found.index("<svg") :])


def image(content: bytes, about: str) -> Html:
    """An img element that contains a PNG. about: a description for those who cannot see it."""
    data = base64.b64encode(content).decode()
    return Html(f'<img alt="{text(about)}" src="data:image/png;base64,{data}">')
