"""Tables for the terminal, in Markdown or in CSV."""

import csv
import io
from collections.abc import Sequence

FORMATS = ("text", "md", "csv")
Line = Sequence[str]


def formatted(head: Line, rows: Sequence[Line], form: str) -> str:
    """The table in one of FORMATS."""
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
        return text.getvalue()
    if form == "md":
        lines = [head, ["---"] * len(head), *rows]
        return "".join(
            f"| {' | '.join(x.replace('|', chr(92) + '|') for x in line)} |\n" for line in lines
        )
    return aligned([head, *rows])


def aligned(lines: Sequence[Line]) -> str:
    """Lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(x.ljust(width) for x, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )
