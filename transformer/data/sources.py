"""Sources of sentence pairs: files of records, parallel text files, or a data set."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.data.cleaning import Cleaning
from transformer.data.pairs import (
    Pair,
    PairSource,
    ReadPairs,
    RecordPairs,
    TextPairs,
    evenly_spaced,
    joined,
    tagged,
)
from transformer.data.records import Records
from transformer.data.splits import DatasetSplit, PairSection, open_dataset
from transformer.system.errors import UserError, place, setting
from transformer.system.paths import cannot_read, local, named_files

MAIN = "train"  # the name of the train split among corpora
MOST_TIMES = 1000  # that a corpus comes in an epoch


@dataclasses.dataclass(frozen=True)
class Corpus:
    """More training pairs; see configs/base.py."""

    file: str | None = place(default=None)
    source: str | None = place(default=None)
    target: str | None = place(default=None)
    source_field: str | None = setting(default=None)
    target_field: str | None = setting(default=None)
    weight: float | None = setting(default=None)
    tag: str | None = setting(default=None)
    source_language: str | None = setting(default=None)
    target_language: str | None = setting(default=None)

    def check(self, name: str) -> None:
        """Raises UserError for values that cannot be. name: such as data.corpora.news"""
        if [bool(self.source), bool(self.target)] != [not self.file] * 2:
            raise UserError(f"{name} needs file, or source and target; give one of these")
        if self.weight is not None and not 0 < self.weight <= MOST_TIMES:
            raise UserError(
                f"{name}.weight is {self.weight}; it must be above 0 and at most {MOST_TIMES}"
            )
        if (self.source_language or self.target_language) and self.weight is None:
            raise UserError(
                f"{name} has a language of its own, so it cannot join the train split; give it a "
                "weight, such as 1.0"
            )
        if self.tag is not None and self.tag.split() != [self.tag]:
            raise UserError(f"{name}.tag is {self.tag!r}; give a word without spaces, such as <bt>")


class Part(NamedTuple):
    """Training pairs that are tokenised and packed together.

    weight: how often in an epoch. languages: of source and target by field, if its own.
    """

    name: str
    pairs: PairSource
    weight: float = 1.0
    languages: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True)
class DataConfig(Cleaning, PairSection):
    """The sentence pairs that a run reads; see configs/base.py."""

    source_language: str
    target_language: str
    source_field: str | None = setting(default=None)
    target_field: str | None = setting(default=None)
    corpora: dict[str, Corpus] = dataclasses.field(default_factory=dict, kw_only=True)
    is_tokenized: bool
    bleu_tokenizer: str | None = setting(may_change=True, default=None)

    @property
    def languages(self) -> dict[str, str]:
        return {"source_language": self.source_language, "target_language": self.target_language}

    @property
    def columns(self) -> dict[str, str]:
        """The names of both fields of a record, by the fields of this section that decide them."""
        source = "source_field" if self.source_field else "source_language"
        target = "target_field" if self.target_field else "target_language"
        return {
            source: self.source_field or self.source_language,
            target: self.target_field or self.target_language,
        }

    @property
    def tags(self) -> list[str]:
        """The different tags of corpora, each a token."""
        return list(dict.fromkeys(corpus.tag for corpus in self.corpora.values() if corpus.tag))

    def __post_init__(self):
        super().__post_init__()
        self.check()
        for name, corpus in self.corpora.items():
            if name == MAIN or not name.isidentifier():
                raise UserError(
                    f"data.corpora has {name!r}; call a corpus by one word, not {MAIN!r}"
                )
            corpus.check(f"data.corpora.{name}")


def in_one_line(text: str) -> str:
    return text.replace("\n", " ")


def open_pairs(
    config: PairSection,
    split: str,
    columns: Mapping[str, str],
    clean: Callable[[str], str] = in_one_line,
) -> PairSource:
    """The pairs of a split; raises UserError for anything wrong with them.

    split: 'train', 'validation' or 'test', which the config maps to files or to TFDS splits; for
      a dataset, also any other split or slice of it.
    columns: the names of the fields of source and target, by the config's fields that name them.
    clean: turns a text into one line.
    A dataset that is not on disk yet is prepared first.
    """
    if config.uses_tfds:
        return DatasetPairs(config, split, columns, clean)
    if not are_text_files(config, split):
        return RecordPairs(config.records(split, columns), clean)
    return TextPairs(*(config.files(split, kind) for kind in config.needed(split)))


def are_text_files(config: PairSection, split: str) -> bool:
    """True for a file of sources and one of targets, False for records."""
    return config.uses_files and "file" not in config.needed(split)


def open_source(config: DataConfig, split: str) -> PairSource:
    """See `open_pairs`."""
    return open_pairs(config, split, config.columns)


def training_parts(config: DataConfig) -> list[Part]:
    """The pairs for training: the train split, with the corpora without weight; then the others.

    Without files for the train split, corpora with weights are enough. Raises UserError for
    anything wrong with them.
    """
    weights = {name: corpus.weight for name, corpus in sorted(config.corpora.items())}
    corpora = {name: _open_corpus(config, name) for name in weights}
    main = [pairs for name, pairs in corpora.items() if weights[name] is None]
    if not config.uses_files or config.given("train") or main or not corpora:
        main = [open_source(config, "train"), *main]
    parts = [Part(MAIN, joined(main))] if main else []
    return parts + [
        Part(name, corpora[name], x, _languages(config, name))
        for name, x in weights.items()
        if x is not None
    ]


def _languages(config: DataConfig, name: str) -> dict[str, str]:
    own = {field: getattr(config.corpora[name], field) for field in config.languages}
    if not any(own.values()):
        return {}
    return {f"corpora.{name}.{x}": own[x] or code for x, code in config.languages.items()}


def training_source(config: DataConfig) -> PairSource:
    """All pairs for training, each once."""
    return joined([part.pairs for part in training_parts(config)])


def _open_corpus(config: DataConfig, name: str) -> PairSource:
    corpus = config.corpora[name]

    def files(field: str) -> list[str]:
        return named_files(getattr(corpus, field), f"data.corpora.{name}.{field}")

    if corpus.file:
        columns = {
            f"corpora.{name}.{side}_field": getattr(corpus, f"{side}_field")
            or getattr(config, f"{side}_field")
            or getattr(corpus, f"{side}_language")
            or usual
            for side, usual in zip(("source", "target"), config.languages.values(), strict=True)
        }
        records = Records(files("file"), columns, config.has_header)
        pairs: ReadPairs = RecordPairs(records, in_one_line)
    else:
        pairs = TextPairs(files("source"), files("target"))
    return tagged(pairs, corpus.tag) if corpus.tag else pairs


class DatasetPairs(ReadPairs):
    """A split of a TFDS dataset.

    columns: the features of source and target, keyed by the config fields that name them.
    clean: turns a text into one line.
    Raises UserError for a split or a feature that the dataset does not have.
    """

    def __init__(
        self,
        config: Any,
        split: str,
        columns: Mapping[str, str],
        clean: Callable[[str], str] = in_one_line,
    ):
        raw_dir = config.raw_dir and local(config.raw_dir, "data.raw_dir")
        found = open_dataset(config, split, columns, texts=True, raw_dir=raw_dir)
        name, features = found.builder.info.full_name, tuple(columns.values())
        identity = [name, *features, _content(found, config.dataset)]
        if (line := clean("a\nb")) != "a b":
            identity.append(line)

        def read(wanted: Sequence[int] | None = None) -> Iterator[Pair]:
            rows = found.rows(columns, wanted)
            return ((clean(one), clean(other)) for _, (one, other) in rows)

        super().__init__(
            read,
            len(found.records()),
            hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            f"pairs of {name} {found.name} ({' to '.join(features)})",
        )
        self._some = read

    def sample(self, size: int) -> list[Pair]:
        return list(self._some(evenly_spaced(len(self), size)))  # the others are not read


def _content(found: DatasetSplit, name: str) -> list[tuple[str, int, int, str]]:
    """The files that hold a split: name, pairs to skip, pairs to take, hash."""
    info = found.builder.info.splits[found.name]
    if info.num_examples < 1:  # TFDS counts -4 in 'train[5:1]'
        raise UserError(f"no sentence pairs in {name} {found.name}; check {found.field}")
    return [
        (os.path.basename(part.filename), part.skip, part.take, _file_hash(part.filename))
        for part in info.file_instructions
    ]


def _file_hash(path: str) -> str:
    """Size and SHA-256 of a data file; above 64 MiB only both ends are hashed.

    The size alone says little: array_record rounds it up. Files of more than 64 MiB belong to
    published datasets, which have version numbers.
    """
    block = 1 << 20
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 64 * block:
                return f"{size} {hashlib.file_digest(file, 'sha256').hexdigest()}"
            start = file.read(block)
            file.seek(-block, os.SEEK_END)
            return f"{size} {hashlib.sha256(start + file.read()).hexdigest()}"
    except OSError as error:
        raise cannot_read(path, error) from error
