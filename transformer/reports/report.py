"""A page about a run, or about several beside each other, for a browser.

    python -m transformer.reports.report --workdir=runs/demo
    python -m transformer.reports.report --workdir=runs/a,runs/b --out=compared.html --format=md

The page is one file without scripts. It has what differs between the configs, curves, speed, the
scores of each evaluated split, BLEU by length, the best and worst translations by sentence chrF,
each with a picture of its attention, and facts of the data. Of several runs it has one table and
the curves in one picture; for a split that all have translated, paired bootstrap tests against the
first run, and the translations that differ most. Runs that still train are welcome. The terminal
shows the table, as text, Markdown or CSV.
"""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags

from transformer.reports.run_report import Run, page, run_of, table
from transformer.reports.translation_report import Attend
from transformer.runs import cli
from transformer.runs.restore import restore
from transformer.streams.attention_maps import attentions, has_attention
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically

WORKDIRS = flags.DEFINE_list("workdir", [], "Work directories, comma-separated.")
OUT = flags.DEFINE_string("out", None, "The page (default: WORKDIR/report.html; of several none).")
ATTENTION = flags.DEFINE_boolean(
    "attention", True, "Whether to show the attention of the best and worst translations."
)
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


def _attend(run: Run) -> Attend | None:
    """The attention of a run's best checkpoint; None for a run that has none to show."""
    if len(WORKDIRS.value) > 1 or not any((run.workdir / "eval").glob("*/hypotheses.txt")):
        return None
    try:
        model = restore(run.workdir)
    except UserError as error:  # of a run that has just begun, or whose checkpoints were removed
        print(f"no attention is shown: {error}", file=sys.stderr)
        return None
    if not has_attention(model):
        return None

    def attend(pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        found = [attention.maps["cross"] for attention in attentions(model, pairs)]
        return [weights_LHTS[max(0, len(weights_LHTS) - 2)].mean(axis=0) for weights_LHTS in found]

    return attend


def main() -> None:
    if not WORKDIRS.value:
        raise UserError("no run is given; add --workdir=runs/demo")
    workdirs = [Path(name) for name in WORKDIRS.value]
    out = OUT.value
    if out is None and len(workdirs) == 1:
        out = str(workdirs[0] / "report.html")
    path = Path(out).expanduser() if out else None
    if path and (path.is_dir() or not folder_allows(path)):
        raise UserError(f"--out={path} cannot be written; name a file in another place")
    runs = [run_of(workdir) for workdir in workdirs]
    print(_in_terminal(*table(runs), FORMAT.value), end="")
    if path:
        write_atomically(path, page(runs, _attend(runs[0]) if ATTENTION.value else None))
        if FORMAT.value == "text":
            print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
