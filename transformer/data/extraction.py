"""The extractive stage of Liu et al. 2018: choosing the paragraphs about a title to read.

A paragraph's score is the sum over the words of the title of N_w log(N_d / N_dw). N_w counts the
word in the paragraph, N_d the paragraphs about this title, and N_dw those that have the word.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.data.documents import read_documents
from transformer.data.records import Records
from transformer.data.text_files import ending, read_lines, unpacked_name
from transformer.data.words import Characters, words_of
from transformer.system.errors import UserError
from transformer.system.paths import check_utf8, looked_up
from transformer.system.reading import plain

TITLE, SUMMARY = "title.txt", "summary.txt"


class Article(NamedTuple):
    """A title, the paragraphs of all texts about it, and the summary to be written, or ""."""

    name: str
    title: str
    paragraphs: list[str]
    summary: str


def scores(title: str, paragraphs: Sequence[str]) -> list[float]:
    """The tf-idf of each paragraph; words are compared in lower case."""
    words = set(_words(title))
    counts = [Counter(_words(paragraph)) for paragraph in paragraphs]
    idf = {}
    for word in words:
        having = sum(word in count for count in counts)
        idf[word] = math.log(len(paragraphs) / having) if having else 0.0
    # An exact sum is the same in any order of the words, so ties stay ties.
    return [math.fsum(count[word] * idf[word] for word in words) for count in counts]


def extract(title: str, paragraphs: Sequence[str], max_words: int) -> str:
    """The title, then paragraphs from the best on, cut to `max_words`; ties keep their order."""
    found = scores(title, paragraphs)
    ranked = sorted(range(len(paragraphs)), key=lambda i: -found[i])
    words = words_of(" ".join([title, *(paragraphs[i] for i in ranked)]))
    return " ".join(words[:max_words])


def read_articles(folder: Path) -> Iterator[Article]:
    """Reads a folder of articles, each a folder with title.txt, texts and perhaps summary.txt.

    All other .txt files are texts about the title, in the order of their names, with empty lines
    between paragraphs. Each file may be packed. Raises UserError for a folder without a title or
    texts.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder{looked_up(folder)}; give one with a folder for each article"
        )
    names = sorted(path for path in folder.iterdir() if path.is_dir())
    if not names:
        raise UserError(f"{folder} has no folders; give one with a folder for each article")
    for article in names:
        check_utf8(article, "an article's folder")
        title = _one_line(article, TITLE)
        if title is None:
            raise UserError(f"{article} has no {TITLE}; add it, with the title in one line")
        if not title:
            raise UserError(f"{article / TITLE} is empty; write the title there")
        summary = _one_line(article, SUMMARY) or ""
        texts = sorted((x for x in article.iterdir() if ending(x) == ".txt"), reverse=True)
        texts = sorted({path.resolve(): path for path in texts}.values())  # each once
        texts = [path for path in texts if unpacked_name(path) not in (TITLE, SUMMARY)]
        records = Records([str(plain(path)) for path in texts], {"text": "text"})
        paragraphs = [" ".join(lines) for lines in read_documents(records)]
        if not paragraphs:
            raise UserError(f"{article} has no texts about its title; add .txt files")
        yield Article(article.name, title, paragraphs, summary)


def _one_line(article: Path, name: str) -> str | None:
    """The text of a file, plain or packed, in one line; None if there is no such file."""
    for path in sorted(article.iterdir()):
        if unpacked_name(path) == name and path.is_file():
            return " ".join(words_of(" ".join(read_lines(path))))
    return None


def _in_word(character: str) -> str:
    # Without the marks, words of Indian scripts would end at vowels.
    is_of_word = character.isalnum() or unicodedata.category(character).startswith("M")
    return character if is_of_word else " "


_LETTERS = Characters(_in_word)


def _words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case. NFC makes both spellings of an accent equal."""
    return unicodedata.normalize("NFC", text).lower().translate(_LETTERS).split()
