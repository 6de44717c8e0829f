"""Sources of sentence pairs: parallel text files, or a TFDS dataset."""

import abc
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformer.data.text_files import count_and_hash, read_lines
from transformer.system.errors import UserError, check_range, place, setting
from transformer.system.paths import cannot_read, local

SPLITS = ("train", "validation", "test")

Pair = tuple[str, str]

_CHUNK = 16_384  # pairs


@dataclasses.dataclass(frozen=True)
class DataConfig:
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

    def __post_init__(self):
        check_both_sides(self, *SPLITS, "extra")
        if not self.uses_text_files and not self.dataset:
            raise UserError(
                "no training data; give data.dataset, or data.train_source and data.train_target"
            )
        check_range(self, "data", "max_source_length max_target_length", 2)  # a word and EOS

    def text_files(self, split: str) -> tuple[str | None, str | None]:
        """The configured source and target file of 'train', 'validation', 'test' or 'extra'."""
        return getattr(self, f"{split}_source"), getattr(self, f"{split}_target")

    @property
    def uses_text_files(self) -> bool:
        return any(path for split in SPLITS for path in self.text_files(split))


def check_both_sides(config: Any, *splits: str) -> None:
    """Raises UserError for a split's source file without its target file, or the reverse."""
    for split in splits:
        source, target = config.text_files(split)
        if bool(source) != bool(target):
            given, missing = ("source", "target") if source else ("target", "source")
            raise UserError(
                f"data.{split}_{given} is given without data.{split}_{missing}; give both "
                "or neither"
            )


class PairSource(abc.ABC):
    """Sentence pairs in a fixed order. No sentence holds a line feed; some may be empty.

    fingerprint: hexadecimal; two sources with the same one have the same pairs.
    """

    fingerprint: str

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def chunks(self, size: int) -> Iterator[list[Pair]]:
        """All pairs in order, in lists of `size` (the last may be shorter)."""

    def pairs(self) -> Iterator[Pair]:
        """All pairs in order."""
        return itertools.chain.from_iterable(self.chunks(_CHUNK))

    @abc.abstractmethod
    def describe(self) -> str:
        """A description of the pairs, for logs."""

    def sample(self, size: int) -> list[Pair]:
        """`size` evenly spaced pairs, including the first; all if there are fewer."""
        wanted = _evenly_spaced(len(self), size)
        picked, start = [], 0
        for chunk in self.chunks(_CHUNK):
            while len(picked) < len(wanted) and wanted[len(picked)] < start + len(chunk):
                picked.append(chunk[wanted[len(picked)] - start])
            start += len(chunk)
        return picked


def open_source(config: DataConfig, split: str) -> PairSource:
    """The pairs of a split; raises UserError for anything wrong with them.

    split: 'train', 'validation' or 'test', which the config maps to files or to TFDS splits; for
      a dataset, also any other split or slice of it.
    A dataset that is not on disk yet is prepared first.
    """
    if not config.uses_text_files:
        languages = {name: getattr(config, name) for name in ("source_language", "target_language")}
        return DatasetPairs(config, split, languages)
    given = [name for name in SPLITS if all(config.text_files(name))]
    if split not in SPLITS:
        raise UserError(
            f"there is no split {split!r} in the text files given; there are: {', '.join(given)}"
        )
    if split not in given:
        raise UserError(
            f"no text files for the {split} split; give data.{split}_source and data.{split}_target"
        )
    return TextPairs(*config.text_files(split))


def training_source(config: DataConfig) -> PairSource:
    """All pairs for training: the train split and, if configured, the extra pairs.

    Raises UserError for anything wrong with them.
    """
    source = open_source(config, "train")
    if config.extra_source:
        source = JoinedPairs(source, TextPairs(*config.text_files("extra")))
    return source


class JoinedPairs(PairSource):
    """The pairs of several sources, one after the other."""

    def __init__(self, *parts: PairSource):
        self._parts = parts
        both = " ".join(["joined", *(part.fingerprint for part in parts)])
        self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        pairs = itertools.chain.from_iterable(
            chunk for part in self._parts for chunk in part.chunks(size)
        )
        while chunk := list(itertools.islice(pairs, size)):
            yield chunk

    def sample(self, size: int) -> list[Pair]:
        """Evenly spaced pairs of each part, in proportion to its size."""
        wanted = _evenly_spaced(len(self), size)
        picked, start = [], 0
        for part in self._parts:
            end = start + len(part)
            picked += part.sample(sum(start <= i < end for i in wanted))
            start = end
        return picked

    def describe(self) -> str:
        return ", and ".join(part.describe() for part in self._parts)


# --- Text files ---------------------------------------------------------------------------


class TextPairs(PairSource):
    """Two text files, line by line; see text_files for what a line is.

    Both files are read once here, so that all errors come first: UserError for a file that
    cannot be read or is not UTF-8, for different numbers of lines, and for empty files.
    """

    def __init__(self, source: str, target: str):
        self._paths = [local(path, "a text file") for path in (source, target)]
        (source_lines, source_hash), (target_lines, target_hash) = map(count_and_hash, self._paths)
        if source_lines != target_lines:
            raise UserError(
                f"{self._paths[0]} has {source_lines} lines and {self._paths[1]} has "
                f"{target_lines}; line n of one must be the translation of line n of the other"
            )
        if source_lines == 0:
            raise UserError(f"no sentence pairs in {self._paths[0]} and {self._paths[1]}")
        self._len = source_lines
        both = f"text {source_hash} {target_hash}"
        self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def __len__(self) -> int:
        return self._len

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        changed = UserError(f"{self._paths[0]} or {self._paths[1]} has changed while it was read")
        pairs = zip(*map(read_lines, self._paths), strict=True)
        count = 0
        try:
            while chunk := list(itertools.islice(pairs, size)):
                count += len(chunk)
                if count > self._len:
                    raise changed
                yield chunk
        except ValueError as error:  # one file is now longer than the other
            raise changed from error
        if count != self._len:
            raise changed

    def describe(self) -> str:
        return f"{self._len} pairs of {self._paths[0]} and {self._paths[1]}"


# --- TFDS ---------------------------------------------------------------------------------


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
        from transformer.data import datasets

        field = f"data.{split}_split" if split in SPLITS else "the split"
        split = getattr(config, f"{split}_split") if split in SPLITS else split
        self._columns, self._clean = tuple(columns.values()), clean
        raw_dir = config.raw_dir and local(config.raw_dir, "data.raw_dir")
        data_dir = local(config.data_dir, "data.data_dir")
        builder = datasets.get_builder(config.dataset, data_dir=data_dir, raw_dir=raw_dir)
        _check_columns(builder, config.dataset, columns)
        datasets.prepare(builder, raw_dir)

        self._name = f"{builder.info.full_name} {split}"
        content = _content(builder, config.dataset, split, field)
        identity = [builder.info.full_name, *self._columns, content or split]
        if (line := clean("a\nb")) != "a b":
            identity.append(line)
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._is_mocked = not content
        self._records = builder.as_data_source(split)
        self._len = len(self._records)

    def __len__(self) -> int:
        return self._len

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        for start in range(0, self._len, size):
            yield self._read(range(start, min(start + size, self._len)))

    def sample(self, size: int) -> list[Pair]:
        wanted = _evenly_spaced(self._len, size)
        parts = [wanted[i : i + _CHUNK] for i in range(0, len(wanted), _CHUNK)]
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


def _check_columns(builder, name: str, columns: Mapping[str, str]) -> None:
    import tensorflow_datasets as tfds

    known = sorted(
        feature
        for feature, kind in builder.info.features.items()
        if isinstance(kind, tfds.features.Text)
    )
    for field, column in columns.items():
        if column not in known:
            raise UserError(
                f"data.{field} is {column!r}, which {name} does not have; it has: "
                f"{', '.join(known)}"
            )


def _content(builder, name: str, split: str, field: str) -> list[tuple[str, int, int, str]]:
    """The files that hold a split: name, pairs to skip, pairs to take, hash."""
    splits = builder.info.splits
    if not splits:
        return []  # in tfds.testing.mock_data
    try:
        info = splits[split]
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{field} is {split!r}, which {name} does not have; it has: "
            f"{', '.join(sorted(splits))}, and slices such as 'train[:10%]'"
        ) from error
    if info.num_examples < 1:  # TFDS counts -4 in 'train[5:1]'
        raise UserError(f"no sentence pairs in {name} {split}; check {field}")
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


def _evenly_spaced(total: int, size: int) -> list[int]:
    size = min(total, size)
    return [i * total // size for i in range(size)]
