"""The words of the synchronous grammar, in English and in German: grammar_lexicon.toml."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


class Pair(NamedTuple):
    """The same words in both languages."""

    en: str
    de: str


class Noun(NamedTuple):
    en: str
    en_plural: str
    de: str
    gender: str
    de_plural: str
    kinds: str
    oblique: str = ""


class Adjective(NamedTuple):
    en: str
    de: str
    kinds: str
    stem: str = ""


class Verb(NamedTuple):
    en: str
    past: str
    de: str
    third: str
    participle: str
    auxiliary: str
    preposition: str
    case: str
    subjects: str
    objects: str


def _rows(name: str) -> Iterator[list[str]]:
    for row in _FILE[name].strip().replace(";", "\n").splitlines():
        if not row.startswith("#"):
            yield ["" if cell == "-" else cell for cell in row.split()]


NOTHING = Pair("", "")
NOUNS = {row[0]: Noun(*row) for row in _rows("nouns")}
VERBS = {row[0]: Verb(*row) for row in _rows("verbs")}
ADJECTIVES = {row[0]: Adjective(*row) for row in _rows("adjectives")}
DETERMINERS = {singular: row for singular, *row in _rows("determiners")}
PRONOUN_ROWS = tuple(_rows("pronouns"))
FORMS = {word: row for word, *row in _rows("forms")}
NUMBERS = dict(zip((*range(1, 20), *range(20, 100, 10)), _rows("numbers"), strict=True))
ENDINGS = {
    (name, case): dict(zip("mfnp", endings[first : first + 4], strict=True))
    for name, *endings in _rows("endings")
    for case, first in (("nom", 0), ("acc", 4), ("dat", 8))
}
MODALS = tuple(_FILE["modals"])
TIMES = _FILE["times"]  # by tense
ADVERBS = _FILE["adverbs"]
PLACES = _FILE["places"]
CONJUNCTIONS = _FILE["conjunctions"]
CONTRACTIONS = _FILE["contractions"]
