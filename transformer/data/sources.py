"""Sources of sentence pairs: parallel text files, or a TFDS dataset."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformer.data.pairs import CHUNK, JoinedPairs, Pair, PairSource, TextPairs, evenly_spaced
from transformer.data.splits import SPLITS, DataSection, DatasetSplit, open_dataset
from transformer.system.errors import UserError, check_range, place, setting
from transformer.system.paths import cannot_read, local


@dataclasses.dataclass(frozen=True)
class DataConfig(DataSection):
    """The sentence pairs that a run reads; see configs/base.py."""

    dataset: str | None
    source_language: str
    target_language: str
    data_dir: str = place()
    raw_dir: str | None = place()
    train_split: str
    validation_split: str
    test_split: str
    train_source: str | None = place()
    train_target: str | None = place()
    validation_source: str | None = place()
    validation_target: str | None = place()
    test_source: str | None = place()
    test_target: str | None = place()
    extra_source: str | None = place()
    extra_target: str | None = place()
    is_tokenized: bool
    bleu_tokenizer: str | None = setting(may_change=True, default=None)
    max_source_length: int
    max_target_length: int
    packing: bool

    what = "text files"
    kinds = (("source", "target"),)

    @property
    def uses_files(self) -> bool:
        return any(map(self.given, SPLITS))

    def __post_init__(self):
        self.check_together(*SPLITS, "extra")
        if not self.uses_files and not self.dataset:
            raise UserError(
                "no training data; give data.dataset, or data.train_source and data.train_target"
            )
        check_range(self, "data", "max_source_length max_target_length", 2)  # a word and EOS


def open_source(config: DataConfig, split: str) -> PairSource:
    """The pairs of a split; raises UserError for anything wrong with them.

    split: 'train', 'validation' or 'test', which the config maps to files or to TFDS splits; for
      a dataset, also any other split or slice of it.
    A dataset that is not on disk yet is prepared first.
    """
    if config.uses_files:
        return TextPairs(**config.needed(split))
    return DatasetPairs(config, split, config.languages)


def training_source(config: DataConfig) -> PairSource:
    """All pairs for training: the train split and, if configured, the extra pairs.

    Raises UserError for anything wrong with them.
    """
    source = open_source(config, "train")
    extra = config.given("extra")
    return JoinedPairs(source, TextPairs(**extra)) if extra else source


class DatasetPairs(PairSource):
    """A split of a TFDS dataset.

    columns: the features of source and target, keyed by the config fields that name them.
    Raises UserError for a split or a feature that the dataset does not have.
    """

    def __init__(
        self,
        config: Any,
        split: str,
        columns: Mapping[str, str],
        clean: Callable[[str], str] = lambda text: text.replace("\n", " "),
    ):
        """clean: turns a text into one line."""
        self._columns, self._clean = tuple(columns.values()), clean
        raw_dir = config.raw_dir and local(config.raw_dir, "data.raw_dir")

        def check(features: Mapping[str, Any]) -> None:
            _check_columns(features, config.dataset, columns)

        found = open_dataset(config, split, check, raw_dir)
        full_name = found.builder.info.full_name
        self._name = f"{full_name} {found.name}"
        content = _content(found, config.dataset)
        identity = [full_name, *self._columns, content or found.name]
        if (line := clean("a\nb")) != "a b":
            identity.append(line)
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._is_mocked = not content
        self._records = found.records()
        self._len = len(self._records)

    def __len__(self) -> int:
        return self._len

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        for start in range(0, self._len, size):
            yield self._read(range(start, min(start + size, self._len)))

    def sample(self, size: int) -> list[Pair]:
        wanted = evenly_spaced(self._len, size)
        parts = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
        return [pair for part in parts for pair in self._read(part)]

    def _read(self, indices: range | list[int]) -> list[Pair]:
        # One call for many is three times faster than one call for each (and fails in
        # tfds.testing.mock_data).
        if self._is_mocked:
            records = [self._records[i] for i in indices]
        else:
            records = self._records.__getitems__(indices)
        return [
            tuple(self._clean(_text(record[column])) for column in self._columns)
            for record in records
        ]

    def describe(self) -> str:
        return f"{self._len} pairs of {self._name} ({' to '.join(self._columns)})"


def _check_columns(features: Mapping[str, Any], name: str, columns: Mapping[str, str]) -> None:
    import tensorflow_datasets as tfds

    known = sorted(x for x, kind in features.items() if isinstance(kind, tfds.features.Text))
    for field, column in columns.items():
        if column not in known:
            raise UserError(
                f"data.{field} is {column!r}, which {name} does not have; it has: "
                f"{', '.join(known)}"
            )


def _content(found: DatasetSplit, name: str) -> list[tuple[str, int, int, str]]:
    """The files that hold a split: name, pairs to skip, pairs to take, hash."""
    if not found.builder.info.splits:
        return []  # in tfds.testing.mock_data
    info = found.builder.info.splits[found.name]
    if info.num_examples < 1:  # TFDS counts -4 in 'train[5:1]'
        raise UserError(f"no sentence pairs in {name} {found.name}; check {found.field}")
    return [
        (os.path.basename(part.filename), part.skip, part.take, _file_hash(part.filename))
        for part in info.file_instructions
    ]


def _text(value: bytes | str) -> str:
    # TFDS gives bytes, and str where its data is mocked.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


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
