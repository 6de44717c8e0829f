"""Parses sentences with a trained model: a line in, a tree out.

    python -m transformer parse --workdir=runs/genia < sentences.txt
    python -m transformer parse --workdir=runs/genia --format=drawing --input=raw.txt
    python -m transformer parse --workdir=runs/genia --is_tokenized --output=trees.txt

Text is split into words as in the Penn Treebank, and brackets in words are written -LRB- and so on.
The search finds only trees, unless --nobrackets is given; then its outputs are mended.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer.data.text_files import packed
from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.files import check_can_write, write_named
from transformer.system.paths import DEFINE_path

if TYPE_CHECKING:
    from transformer.data.trees import Tree
    from transformer.runs.restore import TrainedModel

restore_model = define_flags()
flags.FLAGS.set_default("brackets", True)
INPUT = DEFINE_path("input", None, "UTF-8 text, plain or packed; standard input if none.")
OUTPUT = DEFINE_path("output", None, "Where to write; standard output if none.")
FORMAT = flags.DEFINE_enum("format", "brackets", ["brackets", "drawing"], "How to write trees.")
IS_TOKENIZED = flags.DEFINE_bool("is_tokenized", False, "There are spaces between the words.")
LINES_AT_ONCE = 256


def main() -> None:
    from transformer.data.text_files import blocks_of_lines, input_of
    from transformer.inference.tree_drawing import drawing
    from transformer.system import distributed

    distributed.refuse_jobs(script("parse"))
    path = Path(OUTPUT.value).expanduser() if OUTPUT.value else None
    if path:
        check_can_write(path)
    file, name = input_of(INPUT.value)
    model = restore_model(task="parsing")
    parts: list[str] = []
    with file:
        for lines in blocks_of_lines(file, name, LINES_AT_ONCE):
            for tree in trees_of(model, lines):
                text = "" if tree is None else str(tree)
                if FORMAT.value == "drawing" and tree is not None:
                    text = drawing(tree)
                if path:
                    parts.append(f"{text}\n")
                else:
                    print(text, flush=True)
    if path:
        write_named(path, packed(path, "".join(parts).encode()))


def trees_of(model: "TrainedModel", lines: list[str]) -> "Iterator[Tree | None]":
    """The tree of each line; None for a blank one."""
    from transformer.data.penn_words import penn_words
    from transformer.data.treebank import source_of
    from transformer.data.trees import escaped
    from transformer.data.words import words_of
    from transformer.tasks.mending import own_tag, repaired

    split = words_of if IS_TOKENIZED.value else penn_words
    words = [[escaped(word) for word in split(line)] if line.strip() else [] for line in lines]
    sources = [source_of(line, model.task.data) for line in words]
    written = model.task.translate(model.params, model.extra, sources)
    for line, sequence in zip(words, written, strict=True):
        has_tags = model.task.data.tags == "gold"
        tags = None if has_tags else [own_tag(word) for word in line]
        yield repaired(words_of(sequence), line, tags) if line else None
