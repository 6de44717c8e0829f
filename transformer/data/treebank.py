"""The data section of the parsing task: sentences and their trees, as pairs of sequences."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from transformer.data.pairs import Pair, PairSource, in_chunks
from transformer.data.splits import DataSection
from transformer.data.text_files import read_lines
from transformer.data.trees import Tree, cleaned, linearised, read_trees
from transformer.data.words import words_of
from transformer.system.errors import UserError, check_choice, check_range, place
from transformer.system.paths import local, looked_up, named_files


@dataclasses.dataclass(frozen=True)
class TreebankConfig(DataSection):
    """See configs/parsing_paper.py."""

    train_trees: str
    validation_trees: str
    test_trees: str
    remove_traces: bool
    remove_functions: bool
    tags: str
    reverse_source: bool
    max_source_length: int
    max_target_length: int
    packing: bool
    raw_dir: str = place()
    data_dir: str = place()

    what = "trees"
    kinds = (("trees",),)

    def __post_init__(self):
        check_choice(self, "data", "tags", ("XX", "gold"))
        check_range(self, "data", "max_source_length max_target_length", 2)


class TreePairs(PairSource):
    """The words of each sentence, and its tree as a sequence.

    Files are read whole here, so that all errors come first. Trees of only traces are left out.
    """

    def __init__(self, config: TreebankConfig, split: str):
        self._config = config
        self._files = _files(config, split)
        self.trees: list[Tree] = []
        remove = {
            "remove_traces": config.remove_traces,
            "remove_functions": config.remove_functions,
        }
        for path in self._files:
            found = (cleaned(tree, **remove) for tree in read_trees(read_lines(path), str(path)))
            self.trees += filter(None, found)
        if not self.trees:
            raise UserError(f"no trees in {', '.join(map(str, self._files))}")
        content = hashlib.sha256(f"trees {config.tags} {config.reverse_source}".encode())
        for tree in self.trees:
            content.update(f"{tree}\n".encode(errors="surrogatepass"))
        self.fingerprint = content.hexdigest()

    def __len__(self) -> int:
        return len(self.trees)

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        return in_chunks(map(self._pair, self.trees), size)

    def describe(self) -> str:
        return f"{len(self)} trees of {', '.join(path.name for path in self._files[:3])}"

    def _pair(self, tree: Tree) -> Pair:
        words = source_of([leaf.word for leaf in tree.leaves()], self._config)
        return words, " ".join(linearised(tree, with_tags=self._config.tags == "gold"))


def source_of(words: list[str], config: TreebankConfig) -> str:
    """The source sequence of a sentence."""
    return " ".join(words[::-1] if config.reverse_source else words)


def _files(config: TreebankConfig, split: str) -> list[Path]:
    """The files of a split, in the order of the patterns, then of their names."""
    patterns, field = config.needed(split)["trees"], f"data.{split}_trees"
    folder = Path(local(config.raw_dir, "data.raw_dir"))
    if not folder.is_dir():
        raise UserError(
            f"data.raw_dir is {folder}, which is no folder{looked_up(folder)}; give that of the "
            "treebank"
        )
    if any(os.path.isabs(pattern) for pattern in words_of(patterns)):
        raise UserError(
            f"{field}: {patterns!r} is no pattern of files below data.raw_dir; give one such as "
            "wsj/22/*.mrg"
        )
    found = named_files(
        " ".join(re.split("[\\n\\t]", patterns)),
        field,
        separator=" ",
        folder=str(folder),
        endings=("", ".gz", ".GZ"),
        order=Path,
    )
    return [Path(path) for path in found]
