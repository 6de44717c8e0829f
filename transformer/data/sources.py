"""Sources of sentence pairs: files of records, parallel text files, or a TFDS dataset."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformer.data.pairs import (
    JoinedPairs,
    Pair,
    PairSource,
    ReadPairs,
    RecordPairs,
    TextPairs,
)
from transformer.data.splits import DatasetSplit, PairSection, open_dataset
from transformer.system.errors import UserError, place, setting
from transformer.system.paths import cannot_read, local


@dataclasses.dataclass(frozen=True)
class DataConfig(PairSection):
    """The sentence pairs that a run reads; see configs/base.py."""

    source_language: str
    target_language: str
    source_field: str | None = setting(default=None)
    target_field: str | None = setting(default=None)
    extra_source: str | None = place()
    extra_target: str | None = place()
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

    def __post_init__(self):
        super().__post_init__()
        if bool(self.extra_source) != bool(self.extra_target):
            given, missing = ("source", "target") if self.extra_source else ("target", "source")
            raise UserError(
                f"data.extra_{given} is given without data.extra_{missing}; give both or neither"
            )


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
    if not config.uses_files:
        return DatasetPairs(config, split, columns, clean)
    if "file" in (kinds := config.needed(split)):
        return RecordPairs(config.records(split, columns), clean)
    return TextPairs(*(config.files(split, kind) for kind in kinds))


def open_source(config: DataConfig, split: str) -> PairSource:
    """See `open_pairs`."""
    return open_pairs(config, split, config.columns)


def training_source(config: DataConfig) -> PairSource:
    """All pairs for training: the train split and, if configured, the extra pairs.

    Raises UserError for anything wrong with them.
    """
    source = open_source(config, "train")
    if not (config.extra_source and config.extra_target):
        return source
    extra = (config.files("extra", kind) for kind in ("source", "target"))
    return JoinedPairs(source, TextPairs(*extra))


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

        def read() -> Iterator[Pair]:
            return ((clean(one), clean(other)) for _, (one, other) in found.rows(columns))

        super().__init__(
            read,
            len(found.records()),
            hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            f"pairs of {name} {found.name} ({' to '.join(features)})",
        )


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
