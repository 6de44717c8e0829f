"""Splitting of raw text into words as in the Penn Treebank."""

import re

from transformer.data.words import words_of

_OPENING = "([{\"`'"
_CLOSING = {")": "(", "]": "[", "}": "{"}
_END = ",;:?!\"'"
_QUOTES = ("``", "''")
_CLITIC = re.compile(r"(?i)(?<=\w)(n't|'(?:s|m|d|ll|re|ve))$")


def penn_words(line: str) -> list[str]:
    """The words of a line. Only its final full stop is split off: others may abbreviate.

    Brackets inside words stay there, as in Ro(SSA); so do $, % and several dots.

    >>> penn_words('"It doesn\\'t bind (NF-kB) to Ro(SSA)," she said.')
    ['``', 'It', 'does', "n't", 'bind', '(', 'NF-kB', ')', 'to', 'Ro(SSA)', ',', "''", 'she', \
'said', '.']
    """
    chunks = words_of(line)
    return [
        word for i, chunk in enumerate(chunks, start=1) for word in _split(chunk, i == len(chunks))
    ]


def _split(chunk: str, is_last: bool) -> list[str]:
    before, after = [], []
    while len(chunk) > 1 and chunk not in _QUOTES and chunk[0] in _OPENING and not _belongs(chunk):
        mark = chunk[:2] if chunk[:2] in _QUOTES else chunk[0]
        chunk = chunk.removeprefix(mark)
        before.append("``" if mark == '"' else mark)
    while len(chunk) > 1 and chunk not in _QUOTES:
        mark = chunk[-2:] if chunk[-2:] in _QUOTES else chunk[-1]
        is_alone = mark in _CLOSING and chunk.count(mark) > chunk.count(_CLOSING[mark])
        is_stop = is_last and mark == "." and not chunk.endswith("..")
        if not (mark[0] in _END or is_alone or is_stop):
            break
        after.insert(0, "''" if mark == '"' else mark)
        chunk = chunk.removesuffix(mark)
    return [*before, *filter(None, _CLITIC.split(chunk)), *after]


def _belongs(chunk: str) -> bool:
    """True if the bracket at the beginning is closed within the word: (-)-menthol."""
    closing = {opening: closing for closing, opening in _CLOSING.items()}.get(chunk[0])
    if closing is None or closing not in chunk:
        return False
    inside = chunk.rstrip(".,;:?!\"')]}")
    return closing not in chunk[len(inside) :]
