"""BLEU by the length of the source: a table, and a picture of several runs.

    python evaluate.py --workdir=runs/lstm --split=test         # and of each other run
    python -m transformer.reports.by_length --workdirs=runs/lstm,runs/luong --out=by_length.png

It reads what evaluate.py has written. The runs must have translated the same sentences.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from transformer.evaluation import scores
from transformer.runs import cli, experiment
from transformer.system.errors import UserError
from transformer.system.files import folder_allows, write_atomically

WORKDIRS = flags.DEFINE_list("workdirs", [], "Work directories of evaluated runs, comma-separated.")
SPLIT = flags.DEFINE_string("split", "test", "The folder below WORKDIR/eval to read.")
BOUNDS = flags.DEFINE_list(
    "bounds", ["8", "12", "16", "20"], "The most words of each group but the last."
)
OUT = flags.DEFINE_string("out", "by_length.png", "The PNG file to write.")


class Texts(NamedTuple):
    """What evaluate.py has written of a split, line by line."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]


def read(workdir: Path, split: str) -> Texts:
    folder = workdir / "eval" / split
    try:
        texts = Texts(
            *(
                (folder / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
                for name in Texts._fields
            )
        )
    except OSError as error:
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; evaluate the run first: "
            f"python evaluate.py --workdir={workdir} --split={split}"
        ) from error
    if len({len(lines) for lines in texts}) > 1:
        raise UserError(f"{folder} has files of different lengths; evaluate the run again")
    return texts


def groups(sources: Sequence[str], bounds: Sequence[int]) -> dict[str, list[int]]:
    """The sentences with 1 to bounds[0] words, and so on, by name; the last has no upper bound."""
    lows = [1, *[bound + 1 for bound in bounds]]
    names = [f"{low}-{high}" for low, high in zip(lows, bounds, strict=False)] + [f"{lows[-1]}+"]
    found: dict[str, list[int]] = {name: [] for name in names}
    for i, source in enumerate(sources):
        found[names[sum(len(source.split()) > bound for bound in bounds)]].append(i)
    return {name: members for name, members in found.items() if members}


def bleu_by_length(workdir: Path, texts: Texts, bounds: Sequence[int]) -> dict[str, float]:
    """BLEU of each group, of the kind that evaluate.py reports."""
    data = experiment.load(workdir).data
    kind = {"target_language": data.target_language, "is_tokenized": data.is_tokenized}
    return {
        name: scores.bleu(*([side[i] for i in members] for side in reversed(texts[1:])), **kind)
        for name, members in groups(texts.sources, bounds).items()
    }


def draw(path: Path, found: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]) -> None:
    """A curve for each run. sizes: how many sentences each group has."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(sizes))
    for name, by_group in found.items():
        axes.plot(places, list(by_group.values()), marker="o", markersize=4, label=name)
    axes.set_xticks(places, [f"{name}\n{size} sentences" for name, size in sizes.items()])
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_atomically(path, picture.getvalue())


def main() -> None:
    if not WORKDIRS.value:
        raise UserError("no run is given; add --workdirs=runs/a,runs/b")
    if not all(bound.isdecimal() for bound in BOUNDS.value):
        raise UserError(f"--bounds={','.join(BOUNDS.value)}: it must be whole numbers")
    bounds = sorted(map(int, BOUNDS.value))
    path = Path(OUT.value).expanduser()
    if path.is_dir() or not folder_allows(path):
        raise UserError(f"--out={path} cannot be written; name a file in another place")
    workdirs = [Path(name) for name in WORKDIRS.value]
    texts = [read(workdir, SPLIT.value) for workdir in workdirs]
    for workdir, other in zip(workdirs, texts, strict=True):
        if other.references != texts[0].references:
            raise UserError(
                f"{workdir} and {workdirs[0]} have translated different sentences; give runs on "
                "the same data"
            )
    found = {
        workdir.name: bleu_by_length(workdir, own, bounds)
        for workdir, own in zip(workdirs, texts, strict=True)
    }
    sizes = {name: len(members) for name, members in groups(texts[0].sources, bounds).items()}
    width = max(map(len, [*found, "sentences"]))
    print(f"{'words':{width}}" + "".join(f"{name:>8}" for name in sizes))
    print(f"{'sentences':{width}}" + "".join(f"{size:8}" for size in sizes.values()))
    for name, by_group in found.items():
        print(f"{name:{width}}" + "".join(f"{bleu:8.2f}" for bleu in by_group.values()))
    draw(path, found, sizes)
    print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
