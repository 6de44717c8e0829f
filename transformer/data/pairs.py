"""Sentence pairs in a fixed order, and text files and records as such sources."""

import abc
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from transformer.data.prefetch import prefetch
from transformer.data.records import Records, listed
from transformer.data.text_files import check_lines, count_and_hash, read_lines
from transformer.system.errors import UserError

Pair = tuple[str, str]
Item = TypeVar("Item")

CHUNK = 16_384  # pairs that are read at once


def in_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of `size`; the last may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


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
        return itertools.chain.from_iterable(self.chunks(CHUNK))

    @abc.abstractmethod
    def describe(self) -> str:
        """A description of the pairs, for logs."""

    def sample(self, size: int) -> list[Pair]:
        """`size` evenly spaced pairs, including the first; all if there are fewer."""
        wanted = evenly_spaced(len(self), size)
        picked, start = [], 0
        for chunk in self.chunks(CHUNK):
            while len(picked) < len(wanted) and wanted[len(picked)] < start + len(chunk):
                picked.append(chunk[wanted[len(picked)] - start])
            start += len(chunk)
        return picked


class JoinedPairs(PairSource):
    """The pairs of several sources, one after the other."""

    def __init__(self, *parts: PairSource):
        self._parts = parts
        both = " ".join(["joined", *(part.fingerprint for part in parts)])
        self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        return in_chunks((pair for part in self._parts for pair in part.pairs()), size)

    def sample(self, size: int) -> list[Pair]:
        """Evenly spaced pairs of each part, in proportion to its size."""
        wanted = evenly_spaced(len(self), size)
        picked, start = [], 0
        for part in self._parts:
            end = start + len(part)
            picked += part.sample(sum(start <= i < end for i in wanted))
            start = end
        return picked

    def describe(self) -> str:
        return ", and ".join(part.describe() for part in self._parts)


def joined(parts: Sequence[PairSource]) -> PairSource:
    return parts[0] if len(parts) == 1 else JoinedPairs(*parts)


class ReadPairs(PairSource):
    """Pairs that are read again each time: from files, or out of memory.

    read: an iterator over all pairs, the same each time. count: their number, which is checked
      again as they are read. name: of the pairs and their place, for logs and errors.
    """

    def __init__(self, read: Callable[[], Iterator[Pair]], count: int, fingerprint: str, name: str):
        self._read, self._count, self.name = read, count, name
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return self._count

    def chunks(self, size: int) -> Iterator[list[Pair]]:
        changed = UserError(f"{self.name}: the text has changed while it was read; run again")
        count = 0
        try:
            for chunk in in_chunks(self._read(), size):
                count += len(chunk)
                if count > self._count:
                    raise changed
                yield chunk
        except ValueError as error:  # one file is now longer than the other
            raise changed from error
        if count != self._count:
            raise changed

    def describe(self) -> str:
        return f"{self._count:,} {self.name}"


def tagged(pairs: ReadPairs, tag: str) -> ReadPairs:
    """The pairs with a tag before each source that is not blank."""

    def read() -> Iterator[Pair]:
        return ((f"{tag} {x}" if x.strip() else "", y) for x, y in pairs.pairs())

    fingerprint = hashlib.sha256(f"tag {tag} {pairs.fingerprint}".encode()).hexdigest()
    return ReadPairs(read, len(pairs), fingerprint, f"{pairs.name}, tagged {tag}")


class TextPairs(ReadPairs):
    """Text files of sources and as many of targets, line by line; see text_files for a line.

    All are read once here, so that all errors come first: UserError for a file that cannot be read
    or is not UTF-8, for different numbers of lines, and for empty files.
    """

    def __init__(self, source: Sequence[str], target: Sequence[str]):
        if len(source) != len(target):
            raise UserError(
                f"{listed(source)} and {listed(target)} are {len(source)} and {len(target)} files; "
                "give as many of sources as of targets, in the same order"
            )
        found = list(prefetch(count_and_hash, [*source, *target], ahead=1, threads=2))
        sides = found[: len(source)], found[len(source) :]
        for one, other, (count, _), (other_count, _) in zip(source, target, *sides, strict=True):
            check_lines({one: count, other: other_count})
        content = " ".join(["text", *(found for side in sides for _, found in side)])

        def read() -> Iterator[Pair]:
            both = (itertools.chain.from_iterable(map(read_lines, x)) for x in (source, target))
            return zip(*both, strict=True)

        super().__init__(
            read,
            sum(count for count, _ in sides[0]),
            hashlib.sha256(content.encode()).hexdigest(),
            f"pairs of {listed(source, 3)} and {listed(target, 3)}",
        )


class RecordPairs(ReadPairs):
    """Two texts of each record.

    clean: turns a text into one line.
    Raises UserError for files without records, or that cannot be read; for others, when the
    record is read.
    """

    def __init__(self, records: Records, clean: Callable[[str], str]):
        count, hashes = records.count_and_hash()
        if not count:
            raise UserError(f"{records} has no records; give a file with one a line")
        identity = [*hashes, *records.fields.values(), clean("a\nb")]
        if records.has_header:
            identity.append("header")

        def read() -> Iterator[Pair]:
            return ((clean(first), clean(second)) for first, second in records.texts())

        fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        super().__init__(read, count, fingerprint, f"records of {records}")


def evenly_spaced(total: int, size: int) -> list[int]:
    size = min(total, size)
    return [i * total // size for i in range(size)]
