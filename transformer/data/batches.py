"""Batches of packed rows (Section 5.1); the batch of step k is a function of (seed, k).

Several sentence pairs share a row, told apart by segment ids. So nearly every position holds a
real token, and one batch shape is enough. Pairs are packed once, in a way that depends on the
seed; each epoch then visits every row exactly once, in a new order. Updates take consecutive rows
of that endless sequence, across the ends of epochs. So all updates have the same number of rows,
and each can be made without those before it.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from transformer.data.rows import PackedRows, SingleRows
from transformer.data.token_cache import TokenizedPairs
from transformer.data.vocabulary import BOS


class Batch(NamedTuple):
    """Packed rows, int32. Segment ids number the pairs of a row 1, 2, ...; 0 is padding.

    `tgt_in` is `tgt_out` shifted right within each sentence, BOS first.
    """

    src_BS: np.ndarray
    src_segments_BS: np.ndarray
    tgt_in_BT: np.ndarray
    tgt_out_BT: np.ndarray
    tgt_segments_BT: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Source and target tokens, padding excluded."""
        return np.count_nonzero(self.src_segments_BS) + np.count_nonzero(self.tgt_segments_BT)


def lengths_of(*corpora: TokenizedPairs) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of all sources and of all targets."""
    sides = zip(*((pairs.source_lengths, pairs.target_lengths) for pairs in corpora), strict=True)
    return tuple(side[0] if len(side) == 1 else np.concatenate(side) for side in sides)


class PackedPairs(PackedRows):
    """Sentence pairs in rows of `source_width` and `target_width` tokens.

    others: more corpora, with rows of their own. weights: see PackedRows; of `pairs` and others.
    """

    def __init__(
        self,
        pairs: TokenizedPairs,
        source_width: int,
        target_width: int,
        seed: int,
        packing: bool = True,
        others: Sequence[TokenizedPairs] = (),
        weights: Sequence[float] = (1.0,),
    ):
        self.pairs, self.all_pairs = pairs, (pairs, *others)
        counts = list(map(len, self.all_pairs))
        self.first_pairs = np.cumsum([0, *counts])
        sides = lengths_of(*self.all_pairs)
        widths = source_width, target_width
        super().__init__(sides, widths, sum(sides), seed, packing, counts, weights)

    @property
    def fill(self) -> float:
        """The share of positions that hold tokens."""
        return self.num_tokens / (len(self) * (self.source_width + self.target_width))

    def pair(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of source and target."""
        corpus = int(np.searchsorted(self.first_pairs, number, side="right")) - 1
        pairs, i = self.all_pairs[corpus], number - self.first_pairs[corpus]
        return pairs.source(i), pairs.target(i)

    def batch(self, rows: np.ndarray) -> Batch:
        """The batch of these rows, in the shape of `rows`; row -1 is empty."""
        if len(self.corpora) == 1:
            return self._batch(rows, 0)
        # A row of another corpus is empty, so zero.
        parts = [self._batch(rows, corpus) for corpus in range(len(self.corpora))]
        return Batch(*(np.add.reduce(arrays) for arrays in zip(*parts, strict=True)))

    def _batch(self, rows: np.ndarray, corpus: int) -> Batch:
        """The batch of these rows as far as they are of a corpus; others are empty."""
        shape, rows = rows.shape, rows.ravel()
        is_own = (rows >= self.corpora[corpus][0]) & (rows <= self.corpora[corpus][-1])
        first = np.where(is_own, self.row_offsets[rows], 0)
        count = np.where(is_own, self.row_offsets[rows + 1] - first, 0)
        row, number = _ragged_arange(count)
        pair = self.pairs_by_row[first[row] + number] - self.first_pairs[corpus]
        p = self.all_pairs[corpus]
        src, src_segments, _ = _lay_out(
            p.source_tokens, p.source_offsets, pair, row, number, len(rows), self.source_width
        )
        tgt_out, tgt_segments, starts = _lay_out(
            p.target_tokens, p.target_offsets, pair, row, number, len(rows), self.target_width
        )
        tgt_in = np.roll(tgt_out, 1, axis=1) * (tgt_segments > 0)
        tgt_in.flat[starts] = BOS
        batch = Batch(src, src_segments, tgt_in, tgt_out, tgt_segments)
        return Batch(*(x.reshape(*shape, -1) for x in batch))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The split of an update's rows: `accumulation` steps of `rows_per_step` rows.

    The last rows may be empty: `rows` counts those that hold sentences.
    """

    rows: int
    accumulation: int
    rows_per_step: int


def layout(
    tokens_per_update: int,
    max_tokens_per_device: int,
    source_width: int,
    target_width: int,
    num_shards: int,
) -> Layout:
    """The layout of an update.

    tokens_per_update: positions of the wider side, source or target.
    max_tokens_per_device: the most of them that a device takes at once; 0: no limit.
    num_shards: the number of parts into which the devices split the rows (sharding.row_shards).

    The rows of an update do not depend on the number of devices or on their memory; only their
    split does.
    """
    width = max(source_width, target_width)
    rows = max(1, tokens_per_update // width)
    rows_at_once = -(-rows // num_shards)
    if max_tokens_per_device:
        rows_at_once = min(rows_at_once, max(1, max_tokens_per_device // width))
    accumulation = -(-rows // (rows_at_once * num_shards))
    # Spread evenly: 97 rows in 2 steps are 49 + 48, not 64 + 33.
    rows_at_once = -(-rows // (accumulation * num_shards))
    return Layout(rows, accumulation, rows_at_once * num_shards)


class TrainingBatches:
    """`batches[k]` is the batch of the update that follows k updates, with axes [A, B, ...]."""

    def __init__(self, packed: PackedRows | SingleRows, layout: Layout, seed: int):
        self.packed = packed
        self.layout = layout
        self.seed = seed
        self._rows_in_epoch = sum(packed.rows_of_corpora)
        self._epoch: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def __getitem__(self, step: int) -> Any:
        return self.packed.batch(self.rows(step))

    def rows(self, step: int) -> np.ndarray:
        """The numbers of the rows, [A, B]; -1 for an empty one."""
        rows = step * self.layout.rows + np.arange(self.layout.rows)
        epochs, positions = np.divmod(rows, self._rows_in_epoch)
        row_numbers = np.concatenate(
            [self._row_order(e)[positions[epochs == e]] for e in np.unique(epochs)]
        )
        shape = (self.layout.accumulation, self.layout.rows_per_step)
        padded = np.full(shape[0] * shape[1], -1)
        padded[: len(rows)] = row_numbers
        return padded.reshape(shape)

    def epochs(self, step: int) -> np.ndarray:
        """The number of times that each of these rows has come before, [A, B]."""
        shape = (self.layout.accumulation, self.layout.rows_per_step)
        number = np.arange(shape[0] * shape[1]).reshape(shape)
        return (step * self.layout.rows + number) // self._rows_in_epoch

    @property
    def fingerprint(self) -> str:
        """A hash of the plan: with another hash a run would continue with other batches.

        It covers the rows and their order in the first epoch. So it also changes when another
        version of NumPy draws other random numbers.
        """
        packed = self.packed
        sizes = self.layout.rows, packed.source_width, packed.target_width
        plan = hashlib.sha256(repr(sizes).encode())
        for array in (packed.pairs_by_row, packed.row_offsets, self._row_order(0)):
            plan.update(array.astype("<i8", copy=False).data)
        return plan.hexdigest()

    @property
    def updates_per_epoch(self) -> float:
        return self._rows_in_epoch / self.layout.rows

    def _row_order(self, epoch: int) -> np.ndarray:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.packed.epoch(self.seed, epoch))
        return self._epoch[1]


class EvaluationBatches:
    """Batches that hold every example exactly once, with about `rows` rows each."""

    def __init__(self, packed: PackedRows, rows: int, num_shards: int):
        """The last batch is filled up with row -1. num_shards: see `layout`."""
        self.packed = packed
        rows = num_shards * max(1, rows // num_shards)
        numbers = np.arange(-(-len(packed) // rows) * rows).reshape(-1, rows)
        self._rows = np.where(numbers < len(packed), numbers, -1)

    @classmethod
    def of_pairs(
        cls,
        pairs: TokenizedPairs,
        source_width: int,
        target_width: int,
        rows: int,
        num_shards: int,
        packing: bool = True,
    ) -> Self:
        """Batches of pairs of any length: if one is longer, rows are fewer and wider."""
        sides = (pairs.source_lengths, source_width), (pairs.target_lengths, target_width)
        scales = [-(-int(lengths.max()) // width) for lengths, width in sides]
        widths = scales[0] * source_width, scales[1] * target_width
        packed = PackedPairs(pairs, *widths, seed=0, packing=packing)
        return cls(packed, rows // max(scales), num_shards)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self.packed.batch(self._rows[index])

    def rows(self, index: int) -> np.ndarray:
        """The numbers of the rows, [B]; -1 for an empty one."""
        return self._rows[index]


def _ragged_arange(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups and members by counts: (2, 0, 3) gives groups 0 0 2 2 2 and members 0 1 0 1 2."""
    group = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return group, np.arange(len(group)) - (ends - counts)[group]


def _lay_out(tokens, offsets, pair, row, number, num_rows, width):
    """Writes the pairs' tokens side by side into rows: ids, segments, sentence starts."""
    lengths = offsets[pair + 1] - offsets[pair]
    ends = np.cumsum(lengths)
    begins = ends - lengths
    # A pair starts in its row where the row's tokens before it end.
    first_of_row = np.searchsorted(row, row)
    start = row * width + begins - begins[first_of_row]
    member, within = _ragged_arange(lengths)
    position = start[member] + within
    ids = np.zeros(num_rows * width, np.int32)
    segments = np.zeros(num_rows * width, np.int32)
    ids[position] = tokens[offsets[pair][member] + within]
    segments[position] = number[member] + 1
    return ids.reshape(num_rows, width), segments.reshape(num_rows, width), start
