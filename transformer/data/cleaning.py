"""Filters of noisy training pairs, each counted by its name in FILTERS; see docs/cleaning.md.

Spaces around and between words do not tell two texts apart.
"""

import dataclasses
import functools
import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Any, Self

from transformer.data.languages import UNSPACED
from transformer.data.words import Characters
from transformer.system.errors import UserError, check_choice, check_range, nearest, setting

# In this order: a pair counts for the first that drops it.
FILTERS = ("length_ratio", "identical", "wrong_script", "long_token", "duplicate")
DUPLICATES = ("none", "pair", "source", "target")
# Scripts as Unicode calls them. Names of letters begin with that of their script, but for Han's.
_SCRIPTS = """
Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul
Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Syriac
Tamil Telugu Thaana Thai Tibetan
"""


@dataclasses.dataclass(frozen=True)
class Cleaning:
    """The fields of the data section for filters; see configs/base.py. By default all are off."""

    max_length_ratio: float = setting(default=0.0)
    drop_identical: bool = setting(default=False)
    source_script: str | None = setting(default=None)
    target_script: str | None = setting(default=None)
    min_script_share: float = setting(default=0.5)
    max_characters_per_token: int = setting(default=0)
    drop_duplicates: str = setting(default="none")

    @classmethod
    def of(cls, data: Any) -> Self:
        """The filters of any data section."""
        fields = dataclasses.fields(cls) if isinstance(data, cls) else ()
        return cls(**{field.name: getattr(data, field.name) for field in fields})

    def check(self) -> None:
        """Raises UserError for values that cannot be."""
        if self.max_length_ratio:
            check_range(self, "data", "max_length_ratio", 1)
        if not 0 < self.min_script_share <= 1:
            raise UserError(
                f"data.min_script_share is {self.min_script_share}; it must be above 0 and at most "
                "1"
            )
        check_range(self, "data", "max_characters_per_token", 0)
        check_choice(self, "data", "drop_duplicates", DUPLICATES)
        for side in ("source", "target"):
            for name in _names(getattr(self, f"{side}_script")):
                if name not in (known := _SCRIPTS.split()):
                    raise UserError(
                        f"data.{side}_script is {name!r:.60}, which is no script known here; "
                        f"{nearest(name, known)}"
                    )

    @property
    def filters(self) -> list[str]:
        """The names of those that are on."""
        has_script = self.source_script or self.target_script
        on = (self.max_length_ratio, self.drop_identical, has_script, self.max_characters_per_token)
        both = zip(FILTERS, (*on, self.drop_duplicates != DUPLICATES[0]), strict=True)
        return [name for name, is_on in both if is_on]


OFF = Cleaning()


def reason(
    config: Cleaning, tags: Sequence[str], words: Sequence[list[str]], lengths: Sequence[int]
) -> str | None:
    """The first filter that drops a pair; `duplicate` takes another way, see distinct_hashes.py.

    tags: words that are no part of a source, if they come first.
    words: between spaces, of both sides. lengths: of both, in tokens.
    """
    if config.max_length_ratio and max(lengths) > config.max_length_ratio * min(lengths):
        return "length_ratio"
    source, target = words
    if source[:1] and source[0] in tags:
        source = source[1:]
    if config.drop_identical and source == target:
        return "identical"
    for side, scripts in (source, config.source_script), (target, config.target_script):
        if scripts and _share("".join(side), scripts) < config.min_script_share:
            return "wrong_script"
    most, both = config.max_characters_per_token, [*source, *target]
    is_long = most and max(map(len, both), default=0) > most
    if is_long and any(len(part) > most for word in both for part in UNSPACED.split(word)):
        return "long_token"
    return None


def hash_of(config: Cleaning, words: Sequence[list[str]]) -> bytes:
    """8 bytes that two pairs share if one is a duplicate of the other, else almost never."""
    sides = {"pair": words, "source": words[:1], "target": words[1:]}[config.drop_duplicates]
    line = "\n".join(map(" ".join, sides))
    return hashlib.blake2b(line.encode(errors="surrogatepass"), digest_size=8).digest()


def _names(scripts: str | None) -> list[str]:
    return [name.strip() for name in scripts.split(",")] if scripts else []


def _share(text: str, scripts: str) -> float:
    """The share of the letters of a text that are of some scripts; 1 if there are no letters."""
    marks, right = _marks(scripts)
    if right.issuperset(text):
        return 1.0  # usual, and found sooner
    letters = text.translate(marks)
    return letters.count("1") / len(letters) if letters else 1.0


@functools.cache
def _marks(scripts: str) -> tuple[Characters, set[str]]:
    """For str.translate: letters of the scripts become 1, others 0; what is no letter goes.

    Returns also the characters met so far that do not become 0.
    """
    beginnings, right = {"CJK" if x == "Han" else x.upper() for x in _names(scripts)}, set()

    def mark(character: str) -> str:
        # NFKC: the letters that wide, narrow, bold or superscript ones stand for.
        letter, found = unicodedata.normalize("NFKC", character)[:1], ""
        if unicodedata.category(letter) in ("Lu", "Ll", "Lt", "Lo"):
            first = unicodedata.name(letter, "").replace("-", " ").partition(" ")[0]
            found = "1" if first in beginnings else "0"
        if found != "0":
            right.add(character)
        return found

    return Characters(mark), right
