"""A page about a run, or about several beside each other, for a browser.

    python -m transformer report --workdir=runs/demo
    python -m transformer report --workdir=runs/a,runs/b --out=compared.html --format=md

The page is one file without scripts. It shows how the config differs from configs/base.py, curves,
speed, the scores of each evaluated split, BLEU by length, the best and worst translations by
sentence chrF, and facts about the data. Several runs share one table, and the curves are in one
picture. For a split that all have translated, there are the translations that differ most. Runs
may still be training. The terminal shows the table, as text, Markdown or CSV.
"""

from pathlib import Path

from absl import flags

from transformer.reports.tables import FORMATS, aligned, formatted
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_atomically, write_named
from transformer.system.paths import DEFINE_path, DEFINE_paths, matching

WORKDIRS = DEFINE_paths(
    "workdir", [], "Work directories, comma-separated; 'runs/*' for all below a folder."
)
OUT = DEFINE_path("out", None, "The page (default: WORKDIR/report.html; of several none).")
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the table in the terminal.")


def _found(name: str) -> list[Path]:
    """The runs that a pattern such as runs/* matches; a name without * stands for itself."""
    from transformer.runs.run_config import is_run

    path = Path(name).expanduser()
    if "*" not in name or path.exists():
        return [path]
    return [path for path in map(Path, sorted(matching(str(path)))) if is_run(path)]


def main() -> None:
    from transformer.reports.run_report import page, run_of, table
    from transformer.reports.translations import names_of

    workdirs = [path for name in WORKDIRS.value for path in _found(name)]
    if not workdirs:
        raise UserError("no run is given; add --workdir=runs/demo")
    out = OUT.value
    if out is None and len(workdirs) == 1:
        out = str(workdirs[0] / "report.html")
    path = Path(out).expanduser() if out else None
    if path:
        check_can_write(path, ".html")
    named = zip(workdirs, names_of(workdirs), strict=True)
    runs = [run_of(workdir)._replace(name=name) for workdir, name in named]
    head, rows = table(runs)
    if FORMAT.value == "text":  # one line a fact: there are few runs and many facts
        print(aligned(list(zip(head, *rows, strict=True))), end="")
    else:
        print(formatted(head, rows, FORMAT.value), end="")
    if path:
        # A run may be a stranger's, so links in it are not followed.
        write = write_named if OUT.value else write_atomically
        write(path, page(runs))
        if FORMAT.value == "text":
            print(f"wrote {path}")
