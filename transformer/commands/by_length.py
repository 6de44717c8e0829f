"""BLEU by source length: a table, and a picture of several runs.

    python evaluate.py --workdir=runs/lstm --split=test         # and of each other run
    python -m transformer by-length --workdirs=runs/lstm,runs/luong --out=by_length.png

It reads the outputs of evaluate.py. The runs must have translated the same sentences.

    python -m transformer by-length --results=results/rnn_conditional-0.json

This reads the ledger. The sentences are downloaded, or read from --raw_dir.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer.system.errors import UserError
from transformer.system.files import check_can_write
from transformer.system.paths import DEFINE_path, DEFINE_paths

if TYPE_CHECKING:
    from transformer.data.sources import DataConfig
    from transformer.tasks.pair_training import Texts

WORKDIRS = DEFINE_paths("workdirs", [], "Work directories of evaluated runs, comma-separated.")
RESULTS = DEFINE_paths("results", [], "JSON files of the ledger, comma-separated.")
DATA_DIR = DEFINE_path(
    "data_dir", None, "With --results: where TFDS keeps data sets.", is_field=True
)
RAW_DIR = DEFINE_path(
    "raw_dir", None, "With --results: a folder with the raw files.", is_field=True
)
SPLIT = flags.DEFINE_string(
    "split", "test", "The folder below WORKDIR/eval to read; with --results, the split."
)
BOUNDS = flags.DEFINE_list(
    "bounds", ["8", "12", "16", "20"], "The most words of each group but the last."
)
OUT = DEFINE_path("out", "by_length.png", "The PNG file to write.")


def draw(path: Path, found: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]) -> None:
    """A curve for each run. sizes: the number of sentences in each group."""
    from transformer.reports.pages import panels
    from transformer.reports.plots import style

    figure, (axes,) = panels(1, columns=1, height=4.5, width=9)
    places = range(len(sizes))
    for number, (name, by_group) in enumerate(found.items()):
        look = style(number, len(by_group)) | {"markersize": 4}
        axes.plot(places, list(by_group.values()), label=name.replace("$", r"\$"), **look)
    axes.set_xticks(places, [f"{name}\n{size} sentences" for name, size in sizes.items()])
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.grid(color="0.9")
    figure.legend(frameon=False, loc="outside right upper")
    figure.write(path, dpi=130)


def main() -> None:
    from transformer.reports import ledger
    from transformer.reports.translations import bleu_by_length, groups, names_of

    if not all(bound.isdecimal() for bound in BOUNDS.value):
        raise UserError(f"--bounds={','.join(BOUNDS.value)}: it must be whole numbers")
    bounds = sorted(map(int, BOUNDS.value))
    path = Path(OUT.value).expanduser()
    check_can_write(path, ".png")
    workdirs, results = (
        [Path(name).expanduser() for name in flag.value] for flag in (WORKDIRS, RESULTS)
    )
    if not workdirs + results:
        raise UserError("no run is given; add --workdirs=runs/a,runs/b or --results=FILE")
    names = names_of([*workdirs, *(path.with_suffix("") for path in results)])
    places = SPLIT.value, DATA_DIR.value, RAW_DIR.value
    texts_of = [
        *map(of_workdir, workdirs),
        *(ledger.translations(path, *places) for path in results),
    ]
    runs = dict(zip(names, texts_of, strict=True))
    (first, (_, texts)), *others = runs.items()
    for name, (_, own) in others:
        if own.references != texts.references:
            raise UserError(
                f"{name} and {first} have translated different sentences; give runs on the same "
                "data"
            )
    found = {name: bleu_by_length(data, own, bounds) for name, (data, own) in runs.items()}
    sizes = {name: len(members) for name, members in groups(texts.sources, bounds).items()}
    width = max(map(len, [*found, "sentences"]))
    print(f"{'words':{width}}" + "".join(f"{name:>8}" for name in sizes))
    print(f"{'sentences':{width}}" + "".join(f"{size:8}" for size in sizes.values()))
    for name, by_group in found.items():
        print(f"{name:{width}}" + "".join(f"{bleu:8.2f}" for bleu in by_group.values()))
    draw(path, found, sizes)
    print(f"wrote {path}")


def of_workdir(workdir: Path) -> "tuple[DataConfig, Texts]":
    """The data section of an evaluated run, and its texts."""
    from transformer.reports.translations import read
    from transformer.runs import run_config

    data = run_config.load(workdir).data
    if not hasattr(data, "target_language"):
        raise UserError(f"{workdir} is no run of translation; leave it out")
    return data, read(workdir, SPLIT.value)
