"""A page about a run, or about several beside each other, for a browser.

    python -m transformer.reports.report --workdir=runs/demo
    python -m transformer.reports.report --workdir=runs/a,runs/b --out=compared.html --format=md

The page is one file without scripts. It has what differs between the configs, curves, speed, the
scores of each evaluated split, BLEU by length, and the best and worst translations by sentence
chrF. Of several runs it has one table and the curves in one picture; for a split that all have
translated, paired bootstrap tests against the first run, and the translations that differ most.
Runs that still train are welcome. The terminal shows the table, as text, Markdown or CSV.
"""

import glob
from pathlib import Path

from absl import flags

from transformer.reports.run_report import page, run_of, table
from transformer.reports.tables import FORMATS, aligned, formatted
from transformer.runs import cli
from transformer.runs.experiment import is_run
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically, write_named

WORKDIRS = flags.DEFINE_list(
    "workdir", [], "Work directories, comma-separated; 'runs/*' for all below a folder."
)
OUT = flags.DEFINE_string("out", None, "The page (default: WORKDIR/report.html; of several none).")
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the table in the terminal.")


def _found(name: str) -> list[Path]:
    """The runs that a pattern such as runs/* matches; a name without * stands for itself."""
    if "*" not in name:
        return [Path(name)]
    return [Path(path) for path in sorted(glob.glob(name)) if is_run(Path(path))]


def main() -> None:
    workdirs = [path for name in WORKDIRS.value for path in _found(name)]
    if not workdirs:
        raise UserError("no run is given; add --workdir=runs/demo")
    out = OUT.value
    if out is None and len(workdirs) == 1:
        out = str(workdirs[0] / "report.html")
    path = Path(out).expanduser() if out else None
    if path:
        check_can_write(path, ".html")
    runs = [run_of(workdir) for workdir in workdirs]
    head, rows = table(runs)
    if FORMAT.value == "text":  # one line a fact: runs are few, facts are many
        print(aligned(list(zip(head, *rows, strict=True))), end="")
    else:
        print(formatted(head, rows, FORMAT.value), end="")
    if path:
        # A run may be a stranger's: no links are followed there.
        write = write_named if OUT.value else write_atomically
        write(path, page(runs))
        if FORMAT.value == "text":
            print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
