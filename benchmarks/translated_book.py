"""Sentence pairs to train on, from a book in Markdown and its translation.

    git clone https://github.com/d2l-ai/d2l-zh
    python benchmarks/translated_book.py --book=d2l-zh --output=d2l

This writes d2l.en and d2l.zh (docs/chinese.md). The files of a chapter stand beside each other:
chapter_origin.md is English, and chapter.md is the Chinese translation of that text.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformer.data.text_files import read_lines
from transformer.runs import cli
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named
from transformer.system.paths import DEFINE_path, given

BOOK = DEFINE_path("book", None, "The folder of the book.")
OUTPUT = DEFINE_path("output", None, "What to write: OUTPUT.en and OUTPUT.zh.")
# Code, and lines that are only a label, such as :label:`a_section`.
LEFT_OUT = re.compile(r"^```.*?^```|^:\w+:`[^`]*`$", re.M | re.S)
ITEM = r"[*-] +|\d+\. +"
LINK = re.compile(r"(?<!!)\[([^]]*)\]\([^)]*\)")
# Besides emphasis: [**...**] and (~~...~~) mark text for slides, {...} is not printed.
MARKS = re.compile(r"^#+ |[\[(](?:\*\*|~~)|(?:\*\*|~~)[])]|\*+|~~|`|\{[^}]*\}")
# Formulas, pictures, tables, HTML and references: without them a sentence has a hole.
NOT_PROSE = re.compile(r"[$\\<>|]|!\[|:\w+:")


def sentence_pairs(english: str, chinese: str) -> Iterator[tuple[str, str]]:
    """Headings, sentences and list items of a chapter that translate each other.

    Sections are paired by number, then the blocks in a section, then the sentences in a block.
    Where one side has more than the other, none of these is taken.
    """
    for sections in _pairs(_sections(english), _sections(chinese)):
        (heading_en, *blocks_en), (heading_zh, *blocks_zh) = sections
        for block_en, block_zh in [(heading_en, heading_zh), *_pairs(blocks_en, blocks_zh)]:
            # After abbreviations such as "e.g." comes a lower-case letter.
            sentences_en = _split(block_en, r"(?<=[.!?]) (?=\W?[A-Z])", between_lines=" ")
            sentences_zh = _split(block_zh, r"(?<=[。！？])", between_lines="")
            for pair in _pairs(sentences_en, sentences_zh):
                if not any(map(NOT_PROSE.search, pair)):
                    yield pair


def _pairs(ours: Sequence, theirs: Sequence) -> list[tuple]:
    return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else []


def _sections(text: str) -> list[list[str]]:
    """Splits a text into sections: each is a list of a heading and blocks between empty lines."""
    sections = re.split(r"^(?=#+ )", LEFT_OUT.sub("", text), flags=re.M)[1:]
    return [
        [heading, *re.split(r"\n\s*\n", body.strip())]
        for heading, _, body in (section.partition("\n") for section in sections)
    ]


def _split(block: str, end: str, between_lines: str) -> list[str]:
    """The items of a list, or the sentences of a paragraph, without marks."""
    block = LINK.sub(r"\1", block)
    is_list = re.match(ITEM, block)
    parts = re.split(rf"^(?:{ITEM})", block, flags=re.M) if is_list else [block]
    texts = [between_lines.join(line.strip() for line in part.split("\n")) for part in parts]
    if not is_list:
        texts = re.split(end, MARKS.sub("", texts[0]))
    return [text for text in (" ".join(MARKS.sub("", text).split()) for text in texts) if text]


def main() -> None:
    folder, output = given(BOOK, OUTPUT)
    paths = [output.with_name(f"{output.name}.{language}") for language in ("en", "zh")]
    for path in paths:
        check_can_write(path)
    pairs: dict[tuple[str, str], None] = {}  # each once, in the order of the book
    for path in sorted(folder.rglob("*_origin.md")):
        translation = path.with_name(path.name.replace("_origin.md", ".md"))
        if translation.exists():
            texts = ("\n".join(read_lines(file)) for file in (path, translation))
            pairs |= dict.fromkeys(sentence_pairs(*texts))
    if not pairs:
        raise UserError(
            f"{folder} has no sentence in a chapter_origin.md that is translated in the chapter.md "
            "beside it; give the folder of the book"
        )
    for path, texts in zip(paths, zip(*pairs, strict=True), strict=True):
        write_named(path, "".join(f"{text}\n" for text in texts))
    print(f"{len(pairs)} pairs; written to {paths[0]} and {paths[1]}")


if __name__ == "__main__":
    cli.run(main)
