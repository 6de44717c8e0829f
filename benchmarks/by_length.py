"""BLEU by source length of results of the ledger: a table, and a picture.

    python benchmarks/by_length.py --results=results/rnn_conditional-0.json --out=by_length.png

The sentences are downloaded, or read from --raw_dir. For runs, `transformer report` has the table.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformer.reports import ledger
from transformer.reports.tables import aligned
from transformer.reports.translation_report import BOUNDS, lengths_figure
from transformer.reports.translations import bleu_by_length, groups, names_of
from transformer.runs import cli
from transformer.system.errors import UserError
from transformer.system.files import check_can_write
from transformer.system.paths import DEFINE_path, DEFINE_paths, given

RESULTS = DEFINE_paths("results", [], "JSON files of the ledger, comma-separated.")
DATA_DIR = DEFINE_path("data_dir", None, "Where TFDS keeps data sets.", is_field=True)
RAW_DIR = DEFINE_path("raw_dir", None, "A folder with the raw files.", is_field=True)
OUT = DEFINE_path("out", "by_length.png", "The PNG file to write.")


def main() -> None:
    (path,) = given(OUT)
    check_can_write(path, ".png")
    if not RESULTS.value:
        raise UserError("--results is missing; give files of the ledger")
    runs = {}
    paths = [Path(name).expanduser() for name in RESULTS.value]
    names = names_of([file.with_suffix("") for file in paths])
    for name, file in zip(names, paths, strict=True):
        data, texts = ledger.translations(file, "test", DATA_DIR.value, RAW_DIR.value)
        if runs and texts.references != next(iter(runs.values()))[1].references:
            raise UserError(f"{file} is of other sentences; give results on the same data")
        runs[name] = data, texts
    sizes = {key: str(len(members)) for key, members in groups(texts.sources, BOUNDS).items()}
    lines = [["", *sizes], ["sentences", *sizes.values()]]
    for name, (data, texts) in runs.items():
        found = bleu_by_length(data, texts, BOUNDS).values()
        lines.append([name, *(f"{bleu:.2f}" for bleu in found)])
    print(aligned(lines), end="")
    lengths_figure(runs).write(path, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
