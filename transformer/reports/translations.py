"""The translations that evaluate.py has written, for reports."""

from collections.abc import Sequence
from pathlib import Path

from transformer.data.sources import DataConfig
from transformer.data.words import words_of
from transformer.metrics import scores
from transformer.system.commands import command
from transformer.system.errors import UserError
from transformer.system.paths import cannot_read
from transformer.system.reading import MISSING, read_text
from transformer.tasks.pair_training import Texts


def names_of(workdirs: Sequence[Path]) -> list[str]:
    """The folders' names; those that share one get as much of the path as tells them apart."""
    paths = [workdir.resolve() for workdir in workdirs]
    names = [path.name for path in paths]
    for length in range(2, max(len(path.parts) for path in paths)):
        names = [
            "/".join(path.parts[-length:]) if names.count(name) > 1 else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names


def read(workdir: Path, split: str) -> Texts:
    folder = workdir / "eval" / split
    try:
        names = Texts._fields[1:]
        columns = [read_text(folder / f"{n}.txt", workdir).split("\n")[:-1] for n in names]
    except MISSING as error:
        first = command("evaluate", f"--workdir={workdir}", f"--split={split}")
        advice = f"; evaluate the run first: {first}"
        raise cannot_read(error.filename, error, advice=advice) from error
    if len({len(lines) for lines in columns}) > 1:
        raise UserError(f"{folder} has files of different lengths; evaluate the run again")
    return Texts(split, *columns)


def groups(sources: Sequence[str], bounds: Sequence[int]) -> dict[str, list[int]]:
    """Groups sentences by words: 1 to bounds[0], and so on; the last has no upper bound."""
    lows = [1, *[bound + 1 for bound in bounds]]
    names = [f"{low}-{high}" for low, high in zip(lows, bounds, strict=False)] + [f"{lows[-1]}+"]
    found: dict[str, list[int]] = {name: [] for name in names}
    for i, source in enumerate(sources):
        found[names[sum(len(words_of(source)) > bound for bound in bounds)]].append(i)
    return {name: members for name, members in found.items() if members}


def bleu_by_length(data: DataConfig, texts: Texts, bounds: Sequence[int]) -> dict[str, float]:
    """BLEU of each group, of the kind that evaluate.py reports for a run with this data section."""
    kind = scores.kind_of_text(data)
    return {
        name: scores.bleu(*([side[i] for i in members] for side in texts[:1:-1]), **kind)
        for name, members in groups(texts.sources, bounds).items()
    }
