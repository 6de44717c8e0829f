"""A page about a run, or about several beside each other, for a browser.

    python -m transformer.reports.report --workdir=runs/demo
    python -m transformer.reports.report --workdir=runs/a,runs/b --out=compared.html --format=md

The page is one file without scripts. It has what differs between the configs, curves, speed, the
scores of each evaluated split, BLEU by length, and the best and worst translations by sentence
chrF. Of several runs it has one table and the curves in one picture; for a split that all have
translated, paired bootstrap tests against the first run, and the translations that differ most.
Runs that still train are welcome. The terminal shows the table, as text, Markdown or CSV.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from transformer.reports.run_report import page, run_of, table
from transformer.runs import cli
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically, write_named

WORKDIRS = flags.DEFINE_list("workdir", [], "Work directories, comma-separated.")
OUT = flags.DEFINE_string("out", None, "The page (default: WORKDIR/report.html; of several none).")
FORMAT = flags.DEFINE_enum("format", "text", ["text", "md", "csv"], "Of the table in the terminal.")


def _in_terminal(head: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> str:
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
        return text.getvalue()
    if form == "md":
        lines = [head, ["---"] * len(head), *rows]
        return "".join(
            f"| {' | '.join(x.replace('|', chr(92) + '|') for x in line)} |\n" for line in lines
        )
    columns = list(zip(head, *rows, strict=True))  # one line a fact: runs are few, facts are many
    widths = [max(len(column[i]) for column in columns) for i in range(len(rows) + 1)]
    return "".join(
        "  ".join(x.ljust(width) for x, width in zip(column, widths, strict=True)).rstrip() + "\n"
        for column in columns
    )


def main() -> None:
    if not WORKDIRS.value:
        raise UserError("no run is given; add --workdir=runs/demo")
    workdirs = [Path(name) for name in WORKDIRS.value]
    out = OUT.value
    if out is None and len(workdirs) == 1:
        out = str(workdirs[0] / "report.html")
    path = Path(out).expanduser() if out else None
    if path:
        check_can_write(path, ".html")
    runs = [run_of(workdir) for workdir in workdirs]
    print(_in_terminal(*table(runs), FORMAT.value), end="")
    if path:
        # A run may be a stranger's: no links are followed there.
        write = write_named if OUT.value else write_atomically
        write(path, page(runs))
        if FORMAT.value == "text":
            print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
