"""The extractive stage of Liu et al. 2018: which paragraphs about a title are worth reading.

A paragraph's score is the sum over the words of the title of N_w log(N_d / N_dw): N_w times the
word occurs in the paragraph, N_d paragraphs there are about this title, N_dw of them have the word.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.data.text_files import read_lines
from transformer.system.errors import UserError

TITLE, SUMMARY = "title.txt", "summary.txt"
_WORD = re.compile(r"\w+")


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
    # An exact sum: it is the same in any order of the words, so that ties are ties.
    return [math.fsum(count[word] * idf[word] for word in words) for count in counts]


def extract(title: str, paragraphs: Sequence[str], max_words: int) -> str:
    """The title, then paragraphs from the best on, cut to so many words; ties keep their order."""
    found = scores(title, paragraphs)
    ranked = sorted(range(len(paragraphs)), key=lambda i: -found[i])
    words = " ".join([title, *(paragraphs[i] for i in ranked)]).split()
    return " ".join(words[:max_words])


def read_articles(folder: Path) -> Iterator[Article]:
    """Each folder in `folder` is an article: title.txt, summary.txt if there is one, and texts.

    All other .txt files, or .txt.gz, are texts about the title, in the order of their names, with
    empty lines between paragraphs. Raises UserError for a folder that is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one with a folder for each article")
    names = sorted(path for path in folder.iterdir() if path.is_dir())
    if not names:
        raise UserError(f"{folder} has no folders; give one with a folder for each article")
    for article in names:
        if not (article / TITLE).is_file():
            raise UserError(f"{article} has no {TITLE}; add it, with the title in one line")
        title = " ".join(" ".join(read_lines(article / TITLE)).split())
        if not title:
            raise UserError(f"{article / TITLE} is empty; write the title there")
        summary = ""
        if (article / SUMMARY).is_file():
            summary = " ".join(" ".join(read_lines(article / SUMMARY)).split())
        texts = sorted({*article.glob("*.txt"), *article.glob("*.txt.gz")})
        texts = [path for path in texts if path.name not in (TITLE, SUMMARY)]
        paragraphs = [paragraph for path in texts for paragraph in _paragraphs(path)]
        if not paragraphs:
            raise UserError(f"{article} has no texts about its title; add .txt files")
        yield Article(article.name, title, paragraphs, summary)


def _paragraphs(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in [*read_lines(path), ""]:
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield " ".join(lines)
            lines = []


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
