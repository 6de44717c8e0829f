"""Test sets that no config names: files of one's own, and sacreBLEU's by their names."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.data.sources import SPLITS
from transformer.data.text_files import read_lines
from transformer.system.errors import UserError
from transformer.system.paths import local


class TestSet(NamedTuple):
    """Sentences and how people have translated them; any number of references, line by line."""

    __test__ = False  # for pytest, which sees a name that begins with Test

    name: str  # as a folder may be called
    sources: list[str]  # none, if only translations are scored
    references: list[list[str]]  # each of them a whole translation


def read_files(source: str | None, references: Sequence[str]) -> TestSet:
    """Text files, plain or .gz, one sentence a line; raises UserError unless they fit together."""
    named = source or references[0]
    given = {path: lines_of(path) for path in filter(None, [source, *references])}
    check_lines({path: len(lines) for path, lines in given.items()})
    name = Path(named).name
    name = f"{name}.txt" if name in SPLITS else name  # the folder of a split is another's
    return TestSet(name, given[source] if source else [], [given[x] for x in references])


def sacrebleu_test_set(name: str, source_language: str, target_language: str) -> TestSet:
    """A test set such as wmt14/full, which sacreBLEU downloads if it is new.

    It keeps them in ~/.sacrebleu, or where the environment variable SACREBLEU says. Raises
    UserError for a set or a pair of languages that there is not, and if the download fails.
    """
    from sacrebleu import utils
    from sacrebleu.dataset import DATASETS

    local(utils.SACREBLEU_DIR, "SACREBLEU")
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        names = ", ".join(near) if near else "sacrebleu --list lists them"
        raise UserError(f"sacreBLEU has no test set {name!r}; did you mean: {names}")
    languages = f"{source_language}-{target_language}"
    if languages not in (pairs := utils.get_langpairs_for_testset(name)):
        raise UserError(
            f"sacreBLEU's test set {name} has no {languages}; it has: {', '.join(sorted(pairs))}"
        )
    try:
        source = utils.get_source_file(name, languages)
        references = utils.get_reference_files(name, languages)
    except (OSError, SystemExit) as error:  # it exits if what it has downloaded is damaged
        raise UserError(
            f"sacreBLEU could not download {name} ({error}); run this once on a machine with a "
            f"network, and copy {utils.SACREBLEU_DIR} from there"
        ) from error
    return TestSet(name, lines_of(source), [lines_of(path) for path in references])


def check_lines(numbers: dict[str, int]) -> None:
    """Raises UserError unless files have as many lines; numbers: by their paths."""
    first, *others = numbers
    for other in others:
        if numbers[other] != numbers[first]:
            raise UserError(
                f"{first} has {numbers[first]} lines and {other} has {numbers[other]}; line n of "
                "both must be of the same sentence"
            )
    if not numbers[first]:
        raise UserError(f"{first} is empty; give text with one sentence a line")


def lines_of(path: str) -> list[str]:
    return list(read_lines(local(path, "a text file")))
