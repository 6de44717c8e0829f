"""The data section of the parsing task: sentences and their trees, as pairs of sequences."""

import dataclasses
import hashlib
import os
import re
from pathlib import Path

from transformer.data.pairs import Pair, ReadPairs
from transformer.data.splits import DataSection
from transformer.data.text_files import PACKINGS, read_lines
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


class TreePairs(ReadPairs):
    """The words of each sentence, and its tree as a sequence.

    Files are read whole here, so that all errors come first. Trees of only traces are left out.
    """

    def __init__(self, config: TreebankConfig, split: str):
        files = _files(config, split)
        self.trees: list[Tree] = []
        remove = {
            "remove_traces": config.remove_traces,
            "remove_functions": config.remove_functions,
        }
        for path in files:
            found = (cleaned(tree, **remove) for tree in read_trees(read_lines(path), str(path)))
            self.trees += filter(None, found)
        if not self.trees:
            raise UserError(f"no trees in {', '.join(map(str, files))}")
        content = hashlib.sha256(f"trees {config.tags} {config.reverse_source}".encode())
        for tree in self.trees:
            content.update(f"{tree}\n".encode(errors="surrogatepass"))

        def pair(tree: Tree) -> Pair:
            words = source_of([leaf.word for leaf in tree.leaves()], config)
            return words, " ".join(linearised(tree, with_tags=config.tags == "gold"))

        name = f"trees of {', '.join(path.name for path in files[:3])}"
        super().__init__(lambda: map(pair, self.trees), len(self.trees), content.hexdigest(), name)


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
        endings=("", *PACKINGS, ".GZ"),
        order=Path,
    )
    return [Path(path) for path in found]
