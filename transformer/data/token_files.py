"""The files of a token cache: token ids as arrays, their checksums, numbers of pairs left out.

source_tokens.bin, target_tokens.bin      all sentences, one after the other
source_offsets.bin, target_offsets.bin    where each sentence begins, and the end
meta.json                                 CRC-32 of each array, numbers of pairs dropped and cut
"""

import collections
import contextlib
import dataclasses
import functools
import json
import operator
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.data.cleaning import FILTERS

_SIDES = ("source", "target")
# Reasons to drop a pair, besides the filters of data/cleaning.py, which are counted if they are on.
_DROPPED = ("empty", "source_too_long", "target_too_long")
COUNTED = (*_DROPPED, "source_cut")


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """Token ids of N sentence pairs; every sentence ends with EOS, none starts with BOS.

    source_tokens, target_tokens: the sentences one after the other, uint16 or, for a
      vocabulary of more than 65,536, int32.
    source_offsets, target_offsets: int64 (N + 1,); sentence i is
      tokens[offsets[i]:offsets[i + 1]].
    report: numbers of pairs: found ('total'), kept ('pairs'), dropped (see `drops`), and with a
      source that was cut ('source_cut').
    The arrays are memory-mapped and read-only.
    """

    source_tokens: np.ndarray
    source_offsets: np.ndarray
    target_tokens: np.ndarray
    target_offsets: np.ndarray
    report: dict[str, int]

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, i: int) -> np.ndarray:
        return self.source_tokens[self.source_offsets[i] : self.source_offsets[i + 1]]

    def target(self, i: int) -> np.ndarray:
        return self.target_tokens[self.target_offsets[i] : self.target_offsets[i + 1]]

    @property
    def dropped(self) -> dict[str, int]:
        """The numbers of pairs dropped, by reason, for people."""
        return {name.replace("_", " "): count for name, count in drops(self.report).items()}

    @property
    def summary(self) -> str:
        """The numbers of pairs kept and dropped, for people."""
        dropped = [f"{count:,} {name}" for name, count in self.dropped.items()]
        cut = f"; sources cut: {self.report['source_cut']:,}" if self.report["source_cut"] else ""
        total = self.report["total"]
        return f"{len(self):,} of {total:,} pairs; dropped: {', '.join(dropped)}{cut}"

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """int32 (N,), EOS included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """int32 (N,), EOS included."""
        return np.diff(self.target_offsets).astype(np.int32)


class Chunk(NamedTuple):
    """Some tokenised pairs: the tokens of all and the length of each.

    counts: numbers of pairs that were dropped, by reason, and of sources that were cut.
    hashes: of each pair, if duplicates are to be dropped: uint64.
    """

    source_tokens: np.ndarray
    source_lengths: np.ndarray
    target_tokens: np.ndarray
    target_lengths: np.ndarray
    counts: dict[str, int]
    hashes: np.ndarray | None = None

    def only(self, chosen: np.ndarray) -> "Chunk":
        """The chosen pairs; the others are dropped as duplicates."""
        source, target = (
            (tokens[np.repeat(chosen, lengths)], lengths[chosen])
            for tokens, lengths in (self[:2], self[2:4])
        )
        return Chunk(*source, *target, self.counts | {"duplicate": int(np.sum(~chosen))})


def drops(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of dropped pairs. A pair counts for the first reason, in this order."""
    return {name: counts[name] for name in (*_DROPPED, *FILTERS) if name in counts}


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocab_size <= 65536 else np.int32)


def read(directory: Path, vocab_sizes: tuple[int, int]) -> TokenizedPairs:
    """The pairs in a directory.

    Raises an OSError, ValueError, KeyError, TypeError or RecursionError for files that TokenWriter
    did not write. To check that, it reads all of them, about a gigabyte a second.
    """
    meta = json.loads((directory / "meta.json").read_bytes())
    arrays = {}
    for name, dtype in _dtypes(vocab_sizes).items():
        path = directory / f"{name}.bin"
        if _crc32(path) != meta["crc32"][name]:
            raise ValueError(f"{path.name} has another checksum than when it was written")
        # As a plain array: slices of np.memmap objects are slow to make.
        arrays[name] = np.memmap(path, dtype, mode="r").view(np.ndarray)
    num_pairs = len(arrays["source_offsets"]) - 1
    names = *COUNTED, *filter(meta["counts"].__contains__, FILTERS)
    counts = {name: operator.index(meta["counts"][name]) for name in names}
    total = num_pairs + sum(drops(counts).values())
    report = {"pairs": num_pairs, **counts, "total": total}
    return TokenizedPairs(**arrays, report=report)


def _crc32(path: Path) -> int:
    """Read, not mapped: what is mapped and touched counts as memory of this process."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


class TokenWriter:
    """Makes a directory and writes pairs to it; `finish` completes it.

    num_pairs, counts: the pairs written so far, and those dropped or cut.
    """

    def __init__(self, directory: Path, vocab_sizes: tuple[int, int]):
        directory.mkdir()
        self._directory = directory
        self._files = {
            name: (directory / f"{name}.bin").open("wb") for name in _dtypes(vocab_sizes)
        }
        self._crc32 = dict.fromkeys(self._files, 0)
        self._ends = dict.fromkeys(_SIDES, 0)
        self.num_pairs = 0
        self.num_bytes = 0
        self.counts = collections.Counter(dict.fromkeys(COUNTED, 0))
        for side in _SIDES:
            self._write(f"{side}_offsets", np.zeros(1, np.int64))

    @property
    def num_seen(self) -> int:
        return self.num_pairs + sum(drops(self.counts).values())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for file in self._files.values():
            # On a full disk, what is left in the buffer fails here a second time.
            with contextlib.suppress(OSError):
                file.close()

    def append(self, chunk: Chunk) -> None:
        for side in _SIDES:
            tokens = getattr(chunk, f"{side}_tokens")
            ends = self._ends[side] + np.cumsum(getattr(chunk, f"{side}_lengths"))
            self._ends[side] += len(tokens)
            self._write(f"{side}_tokens", tokens)
            self._write(f"{side}_offsets", ends)
        self.num_pairs += len(chunk.source_lengths)
        self.counts.update(chunk.counts)

    def finish(self) -> None:
        """Writes meta.json; after this everything is on the disk."""
        self._files["meta"] = (self._directory / "meta.json").open("wb")
        meta = {"crc32": self._crc32, "counts": self.counts}
        self._files["meta"].write(json.dumps(meta, indent=1).encode())
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def _write(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.data)
        self._crc32[name] = zlib.crc32(values.data, self._crc32[name])
        self.num_bytes += values.nbytes


def _dtypes(vocab_sizes: tuple[int, int]) -> dict[str, np.dtype]:
    """The arrays of a cache, and their types."""
    source, target = map(token_dtype, vocab_sizes)
    return {
        "source_tokens": source,
        "source_offsets": np.dtype(np.int64),
        "target_tokens": target,
        "target_offsets": np.dtype(np.int64),
    }
