"""Where sentence pairs come from: parallel text files, or a TFDS dataset."""

import abc
import contextlib
import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from typing import IO

from transformer.system.errors import UserError, setting

SPLITS = ("train", "validation", "test")

Pair = tuple[str, str]

_BLOCK = 1 << 20  # bytes
_CHUNK = 16_384  # pairs


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which sentence pairs a run reads; see configs/base.py."""

    dataset: str | None
    source_language: str
    target_language: str
    data_dir: str = setting(may_change=True, recorded=False)
    raw_dir: str | None = setting(may_change=True, recorded=False)
    train_split: str
    validation_split: str
    test_split: str
    train_source: str | None = setting(may_change=True, recorded=False)
    train_target: str | None = setting(may_change=True, recorded=False)
    validation_source: str | None = setting(may_change=True, recorded=False)
    validation_target: str | None = setting(may_change=True, recorded=False)
    test_source: str | None = setting(may_change=True, recorded=False)
    test_target: str | None = setting(may_change=True, recorded=False)
    extra_source: str | None = setting(may_change=True, recorded=False)
    extra_target: str | None = setting(may_change=True, recorded=False)
    is_tokenized: bool
    packing: bool
    max_source_length: int
    max_target_length: int

    def __post_init__(self):
        for split in (*SPLITS, "extra"):
            source, target = self.text_files(split)
            if bool(source) != bool(target):
                given, missing = ("source", "target") if source else ("target", "source")
                raise UserError(
                    f"data.{split}_{given} is given without data.{split}_{missing}; give both "
                    "or neither"
                )
        if not self.uses_text_files and not self.dataset:
            raise UserError(
                "no training data; give data.dataset, or data.train_source and data.train_target"
            )
        for field in ("max_source_length", "max_target_length"):
            if getattr(self, field) < 2:
                raise UserError(
                    f"data.{field} is {getattr(self, field)}; give 2 or more: a word and EOS"
                )

    def text_files(self, split: str) -> tuple[str | None, str | None]:
        """The configured source and target file of 'train', 'validation', 'test' or 'extra'."""
        return getattr(self, f"{split}_source"), getattr(self, f"{split}_target")

    @property
    def uses_text_files(self) -> bool:
        return any(path for split in SPLITS for path in self.text_files(split))


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
        """What the pairs are, for logs."""

    def sample(self, size: int) -> list[Pair]:
        """`size` evenly spaced pairs, the first among them; all if there are fewer."""
        wanted = _evenly_spaced(len(self), size)
        picked, start = [], 0
        for chunk in self.chunks(_CHUNK):
            while len(picked) < len(wanted) and wanted[len(picked)] < start + len(chunk):
                picked.append(chunk[wanted[len(picked)] - start])
            start += len(chunk)
        return picked


def open_source(config: DataConfig, split: str) -> PairSource:
    """The pairs of a split; raises UserError for all that is wrong with them.

    split: 'train', 'validation' or 'test', which the configuration maps to files or to
      TFDS splits; or, of a dataset, any of its other splits or slices.
    A dataset that is not on disk yet is prepared first.
    """
    if not config.uses_text_files:
        return DatasetPairs(config, split)
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
    """All that training sees: the train split, the extra pairs, and these exchanged, as configured.

    Raises UserError for all that is wrong with them.
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
        """As many of each part as it has of the whole, evenly spaced there."""
        wanted = _evenly_spaced(len(self), size)
        picked, start = [], 0
        for part in self._parts:
            end = start + len(part)
            picked += part.sample(sum(start <= i < end for i in wanted))
            start = end
        return picked

    def describe(self) -> str:
        return ", and ".join(part.describe() for part in self._parts)


class ExchangedPairs(PairSource):
    """The pairs of a source with their sides exchanged."""

    def __init__(self, pairs: PairSource):
        self._pairs = pairs
        self.fingerprint = hashlib.sha256(f"exchanged {pairs.fingerprint}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._pairs)

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        for chunk in self._pairs.chunks(size):
            yield [(target, source) for source, target in chunk]

    def sample(self, size: int) -> list[Pair]:
        return [(target, source) for source, target in self._pairs.sample(size)]

    def describe(self) -> str:
        return f"{len(self)} pairs of the same, exchanged"


# --- Text files ---------------------------------------------------------------------------


class TextPairs(PairSource):
    """Two text files, line by line.

    A line ends at a line feed and nowhere else: Python also takes U+2028, U+0085, form
    feeds and lone carriage returns for line ends, which occur inside real sentences. The
    carriage return before a line feed and a byte-order mark are not part of the text.

    Both files are read once here, so that all errors come first: UserError for a file
    that cannot be read or is not UTF-8, for different numbers of lines, and for none.
    """

    def __init__(self, source: str, target: str):
        self._paths = [os.path.expanduser(path) for path in (source, target)]
        (source_lines, source_hash), (target_lines, target_hash) = map(_scan, self._paths)
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
        count = 0
        with open_text(self._paths[0]) as source, open_text(self._paths[1]) as target:
            sides = [
                blocks_of_lines(file, path, size)
                for file, path in zip((source, target), self._paths, strict=True)
            ]
            for lines in itertools.zip_longest(*sides, fillvalue=()):
                count += len(lines[0])
                if len(lines[0]) != len(lines[1]) or count > self._len:
                    raise changed
                yield list(zip(*lines, strict=True))
        if count != self._len:
            raise changed

    def describe(self) -> str:
        return f"{self._len} pairs of {self._paths[0]} and {self._paths[1]}"


def _scan(path: str) -> tuple[int, str]:
    """Number of lines and SHA-256 of a text file; raises UserError if it is not one."""
    count, content = 0, hashlib.sha256()
    if os.path.exists(path) and not os.path.isfile(path):
        # Pipes, too: the files are read more than once.
        raise UserError(f"{path} is not a file; give a text file, or one ending in .gz")
    with _read_errors(path), open_text(path) as file:
        while lines := file.readlines(_BLOCK):
            block = b"".join(lines)
            content.update(block)
            try:
                block.decode()
            except UnicodeDecodeError as error:
                line = count + block.count(b"\n", 0, error.start) + 1
                column = error.start - block.rfind(b"\n", 0, error.start)
                raise UserError(
                    f"{path} is not UTF-8: line {line}, byte {column} is "
                    f"0x{block[error.start]:02x}; convert the file to UTF-8"
                ) from error
            count += len(lines)
    return count, content.hexdigest()


def open_text(path: str) -> IO[bytes]:
    """Opens a text file, or one ending in '.gz', for its bytes; UserError if that fails."""
    with _read_errors(path):
        return gzip.open(path) if path.endswith(".gz") else open(path, "rb")


def blocks_of_lines(file: IO[bytes], name: str, size: int) -> Iterator[list[str]]:
    """The lines of an open UTF-8 file, `size` at a time; UserError for what is none.

    A line ends at a line feed and nowhere else; see `TextPairs`.
    """
    for start in itertools.count(step=size):
        lines = []
        with _read_errors(name):
            for line in itertools.islice(file, size):
                try:
                    lines.append(line.removesuffix(b"\n").removesuffix(b"\r").decode())
                except UnicodeDecodeError as error:
                    number = start + len(lines) + 1
                    raise UserError(f"{name}, line {number} is not UTF-8; convert it") from error
        if not lines:
            return
        if start == 0:
            lines[0] = lines[0].removeprefix("\ufeff")
        yield lines


@contextlib.contextmanager
def _read_errors(path: str) -> Iterator[None]:
    """Makes what goes wrong while a file is read a UserError."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or not a gzip file: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


# --- TFDS ---------------------------------------------------------------------------------


class DatasetPairs(PairSource):
    """A split of a TFDS dataset.

    Raises UserError for a split or a language that the dataset does not have.
    """

    def __init__(self, config: DataConfig, split: str):
        from transformer.data import datasets

        field = f"data.{split}_split" if split in SPLITS else "the split"
        split = getattr(config, f"{split}_split") if split in SPLITS else split
        self._languages = (config.source_language, config.target_language)
        builder = datasets.get_builder(
            config.dataset,
            data_dir=os.path.expanduser(config.data_dir),
            raw_dir=config.raw_dir and os.path.expanduser(config.raw_dir),
        )
        _check_languages(builder, config)
        datasets.prepare(builder)

        self._name = f"{builder.info.full_name} {split}"
        content = _content(builder, config.dataset, split, field)
        identity = json.dumps([builder.info.full_name, *self._languages, content or split])
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()
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
        source, target = self._languages
        return [(_text(record[source]), _text(record[target])) for record in records]

    def describe(self) -> str:
        return f"{self._len} pairs of {self._name} ({' to '.join(self._languages)})"


def _check_languages(builder, config: DataConfig) -> None:
    import tensorflow_datasets as tfds

    languages = sorted(
        name
        for name, feature in builder.info.features.items()
        if isinstance(feature, tfds.features.Text)
    )
    for field in ("source_language", "target_language"):
        if getattr(config, field) not in languages:
            raise UserError(
                f"data.{field} is {getattr(config, field)!r}, which {config.dataset} does not "
                f"have; it has: {', '.join(languages)}"
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
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.replace("\n", " ")


def _file_hash(path: str) -> str:
    """Size and SHA-256 of a data file, or of both ends of one that is larger than 64 MiB.

    The size alone says little: array_record rounds it up. Files of more than 64 MiB are
    of published datasets, which have version numbers.
    """
    content = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > 64 * _BLOCK:
                content.update(file.read(_BLOCK))
                file.seek(-_BLOCK, os.SEEK_END)
            while block := file.read(_BLOCK):
                content.update(block)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return f"{size} {content.hexdigest()}"


def _evenly_spaced(total: int, size: int) -> list[int]:
    size = min(total, size)
    return [i * total // size for i in range(size)]
