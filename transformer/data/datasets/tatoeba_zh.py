"""English and Chinese sentences of Tatoeba, from the user's own files."""

import hashlib
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from transformer.data.datasets import folders
from transformer.data.datasets.ordered_pairs import OrderedPairs
from transformer.data.pairs import Pair, TextPairs
from transformer.system.errors import UserError

LANGUAGES = ("en", "zh")
# A split cut from the training files has HELD_OUT pairs, but at most one in ONE_IN of them.
HELD_OUT, ONE_IN = 1000, 10

_DESCRIPTION = """
Short everyday sentences, written and translated by volunteers of Tatoeba (CC BY 2.0 FR).
Simplified and traditional characters are mixed.
"""


class TatoebaZh(OrderedPairs):
    """English and Chinese sentences of Tatoeba.

    raw_dir names a folder with train.en and train.zh, plain or gzipped, line by line. If it has
    no validation.en and validation.zh, or no test.en and test.zh, that split is cut from the
    training files: split_pairs says how. Nothing is downloaded.

    The splits depend on the files, so the config, the directory on disk and info.full_name say
    "local-<hash of the files>".

    Raises UserError for files that are missing, broken, or do not match in length.
    """

    languages = LANGUAGES
    description = _DESCRIPTION
    homepage = "https://tatoeba.org"

    def __init__(self, *, raw_dir: str | None = None, **kwargs):
        if not raw_dir:
            raise UserError(
                "tatoeba_zh is not downloaded; set data.raw_dir to a folder that holds "
                "train.en and train.zh (docs/chinese.md)"
            )
        splits = ("train", "validation", "test")
        names = {split: [f"{split}.{language}" for language in LANGUAGES] for split in splits}
        advice = "point data.raw_dir to a folder that has them"
        self._files = folders.find(Path(raw_dir), names, advice)
        content = folders.fingerprint(path for both in self._files.values() for path in both)
        super().__init__(config=tfds.core.BuilderConfig(name=f"local-{content}"), **kwargs)

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        given = {
            name: list(TextPairs(*([str(path)] for path in both)).pairs())
            for name, both in self._files.items()
        }
        return {name: self._generate_examples(pairs) for name, pairs in split_pairs(given).items()}


def split_pairs(given: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Train, validation and test splits that share no sentence with the training pairs.

    given: the pairs of 'train', and perhaps of 'validation' and 'test', which stay as they are.
    A missing split gets HELD_OUT different English sentences of the training pairs, each with
    its first translation: those with the lowest SHA-256. So another order of the pairs, or a few
    more pairs, change little. A training pair is dropped if either of its sentences is in
    validation or test, ignoring case, punctuation, spaces and width of characters. (Traditional
    and simplified characters count as different.)
    """
    splits = {name: pairs for name, pairs in given.items() if name != "train"}
    train = _apart_from(given["train"], [pair for pairs in splits.values() for pair in pairs])
    for name in ("test", "validation"):
        if name not in splits:
            splits[name] = _cut(train)
            train = _apart_from(train, splits[name])
    if not train:
        raise UserError(
            "no training pair of tatoeba_zh is left: each shares a sentence with validation or "
            "test; put other files into data.raw_dir"
        )
    return {name: {"train": train, **splits}[name] for name in ("train", "validation", "test")}


def sentence_key(text: str) -> str:
    """The part that two spellings of one sentence have in common: its letters and digits.

    For a sentence without any, such as "?!", it is all of it.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


def _cut(pairs: list[Pair]) -> list[Pair]:
    first = {}
    for pair in pairs:
        first.setdefault(sentence_key(pair[0]), pair)
    lowest = sorted(first, key=lambda key: hashlib.sha256(key.encode()).digest())
    size = min(HELD_OUT, -(-len(lowest) // ONE_IN))
    return [first[key] for key in lowest[:size]]


def _apart_from(pairs: list[Pair], held_out: Collection[Pair]) -> list[Pair]:
    english, chinese = ({sentence_key(pair[side]) for pair in held_out} for side in (0, 1))
    return [
        (en, zh)
        for en, zh in pairs
        if sentence_key(en) not in english and sentence_key(zh) not in chinese
    ]
