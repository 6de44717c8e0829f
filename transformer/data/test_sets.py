"""Test sets that no config names: the user's own files, and sacreBLEU's sets by name."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.data import languages
from transformer.data.splits import SPLITS
from transformer.data.text_files import check_lines, read_lines
from transformer.system import buckets
from transformer.system.errors import UserError, nearest
from transformer.system.paths import checked, local


class Input(NamedTuple):
    """A file or folder for which scores are computed."""

    path: str | None  # absolute; None for a pipe
    sha256: str | None = None  # of the text of a file, unpacked

    @classmethod
    def of(cls, path: str, lines: Sequence[str]) -> "Input":
        """The Input for a text file with these lines."""
        absolute = os.path.abspath(os.path.expanduser(path))
        place = buckets.address_of(Path(absolute))
        text = "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")
        is_file = os.path.isfile(absolute)
        return cls(place if is_file else None, hashlib.sha256(text).hexdigest())


class TestSet(NamedTuple):
    """Sentences and human translations of them; any number of references, line by line."""

    __test__ = False  # for pytest, which sees a name that begins with Test

    name: str  # also the name of a folder
    sources: list[str]  # empty if only translations are scored
    references: list[list[str]]  # each of them a whole translation
    inputs: Mapping[str, Input] = {}  # the files, if they are the user's own


def read_files(source: str | None, references: Sequence[str]) -> TestSet:
    """Reads text files, one sentence a line; raises UserError unless they match."""
    named = source or references[0]
    given = {path: lines_of(path) for path in filter(None, [source, *references])}
    check_lines({path: len(lines) for path, lines in given.items()})
    name = Path(named).name
    # These names belong to the folders of splits and the link to the latest.
    name = f"{name}.txt" if name in (*SPLITS, "latest") else name
    inputs = {"source": Input.of(source, given[source])} if source else {}
    for number, path in enumerate(references, start=1):
        role = "reference" if number == 1 else f"reference.{number}"
        inputs[role] = Input.of(path, given[path])
    return TestSet(name, given[source] if source else [], [given[x] for x in references], inputs)


def sacrebleu_test_set(name: str, source_language: str, target_language: str) -> TestSet:
    """A test set such as wmt14/full, which sacreBLEU downloads if it is new.

    It keeps them in ~/.sacrebleu, or in the folder that the environment variable SACREBLEU names.
    Raises UserError for an unknown set or pair of languages, and if the download fails.
    """
    from sacrebleu import utils
    from sacrebleu.dataset import DATASETS

    checked(utils.SACREBLEU_DIR, "SACREBLEU", in_buckets=False)
    if name not in DATASETS:
        hint = nearest(name, DATASETS, otherwise="`sacrebleu --list` lists those that there are")
        raise UserError(f"sacreBLEU has no test set {name!r}; {hint}")
    given = source_language, target_language
    known = ["-".join(given), "-".join(map(languages.language, given))]
    pairs = utils.get_langpairs_for_testset(name)
    pair = next((pair for pair in known if pair in pairs), None)
    if pair is None:
        raise UserError(
            f"sacreBLEU's test set {name} has no {known[0]}; it has: {', '.join(sorted(pairs))}"
        )
    try:
        source = utils.get_source_file(name, pair)
        references = utils.get_reference_files(name, pair)
    except (OSError, SystemExit) as error:  # it exits if a download is damaged
        raise UserError(
            f"sacreBLEU could not download {name} ({error}); run this once on a machine with a "
            f"network, and copy {utils.SACREBLEU_DIR} from there"
        ) from error
    return TestSet(name, lines_of(source), [lines_of(path) for path in references])


def lines_of(path: str) -> list[str]:
    return list(read_lines(local(path, "a text file")))
