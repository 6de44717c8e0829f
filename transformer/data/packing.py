"""Packing: which sentence pairs share a row, so that rows are nearly full on both sides."""

import numpy as np

_CHOSEN_PAIRS = 2  # about this many of a row are chosen for their lengths, the others by chance
_ATTEMPTS = 4
_WELL_FILLED = 0.97  # rows with a smaller share of tokens are taken apart for the next attempt
_MEAN_PAIRS = 3  # that must fit into a row; with fewer, there is no good choice
_MULTIPLE = 8  # of which a widened row's width is a multiple, for tensor cores


def row_widths(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    least_source: int,
    least_target: int,
    packing: bool = True,
) -> tuple[int, int]:
    """Widths of rows for these pairs.

    Packed rows get the least widths, with two changes: the side with more tokens gets a wider
    row, so that both sides fill up equally, and three pairs of mean length fit into both sides. No
    width is more than twice the least one.
    Without packing, the widths are the lengths of the longest source and target.
    """
    if not packing:
        return int(source_lengths.max()), int(target_lengths.max())
    least = np.array([least_source, least_target])
    means = np.array([source_lengths.mean(), target_lengths.mean()])
    num_pairs = max(_MEAN_PAIRS, *(least / means))
    to_whole = np.ceil if num_pairs == _MEAN_PAIRS else np.round  # three must fit
    widths = to_whole(num_pairs * means / _MULTIPLE).astype(int) * _MULTIPLE
    source_width, target_width = np.clip(widths, least, 2 * least).tolist()
    return source_width, target_width


def pack(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_width: int,
    target_width: int,
    seed: int,
) -> np.ndarray:
    """The row of each pair, int64 (N,): rows 0, 1, ..., none of them empty.

    No pair may be longer than a row. Pairs of equal lengths are interchangeable, and so are rows
    with equal space left. So the time depends on the number of different ones: one or two
    microseconds a pair for a million sentence pairs, ten if lengths are spread evenly.
    """
    rng = np.random.default_rng((seed, 0))
    row_of_pair = np.empty(len(source_lengths), np.int64)
    rest, num_rows = np.arange(len(source_lengths)), 0
    for attempts_left in reversed(range(_ATTEMPTS)):
        rest = rng.permutation(rest)
        source, target = source_lengths[rest], target_lengths[rest]
        row = _pack_once(source, target, source_width, target_width)
        tokens = np.bincount(row, source + target)
        lowest = _WELL_FILLED * (source_width + target_width) if attempts_left else 0
        is_kept = tokens >= lowest
        number = num_rows + np.cumsum(is_kept) - 1
        row_of_pair[rest] = number[row]
        num_rows += np.count_nonzero(is_kept)
        rest = rest[~is_kept[row]]
        if len(rest) == 0:
            break
    return row_of_pair


def _pack_once(source, target, source_width, target_width) -> np.ndarray:
    """The row of each pair; all rows but a few are well filled."""
    # 1. Take most of a row's pairs as they come. Give up rows that they overfill.
    least_rows = max(source.sum() / source_width, target.sum() / target_width)
    num_by_chance = max(0, int(len(source) / least_rows - _CHOSEN_PAIRS))
    shape = int(least_rows), num_by_chance
    by_chance = np.arange(shape[0] * shape[1]).reshape(shape)
    source_room = source_width - source[by_chance].sum(axis=1)
    target_room = target_width - target[by_chance].sum(axis=1)
    is_row = (source_room >= 0) & (target_room >= 0)
    by_chance, source_room, target_room = (a[is_row] for a in (by_chance, source_room, target_room))

    # 2. Number the rows so that those with equal space left follow each other.
    order, rooms = _groups(source_room, target_room, source_width, target_width)
    row_of_pair = np.full(len(source), -1)
    row_of_pair[by_chance[order]] = np.arange(len(order))[:, None]
    rows = _OpenRows(source_width, target_width)
    for room, count in rooms:
        rows.add(room, rows.new(count))

    # 3. Put the other pairs where they fit best, the largest first.
    rest = np.flatnonzero(row_of_pair < 0)
    order, pairs = _groups(source[rest], target[rest], source_width, target_width)
    ranges = [numbers for pair, count in pairs for numbers in rows.place(*pair, count)]
    firsts = np.array([numbers.start for numbers in ranges], np.int64)
    counts = np.array([len(numbers) for numbers in ranges], np.int64)
    within = np.arange(len(rest)) - np.repeat(np.cumsum(counts) - counts, counts)
    row_of_pair[rest[order]] = np.repeat(firsts, counts) + within
    return row_of_pair


def _groups(source, target, source_width, target_width):
    """Groups pairs of equal lengths, the largest first: their order, lengths and counts."""
    size = source.astype(np.int64) * target_width + target.astype(np.int64) * source_width
    key = size * (source_width + 1) + source
    order = np.argsort(-key, kind="stable")  # any other kind differs between processors
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    first = order[starts]
    pairs = zip(source[first].tolist(), target[first].tolist())
    return order, list(zip(pairs, counts.tolist()))


class _OpenRows:
    """Rows by the space, of source and target, that they have left."""

    def __init__(self, source_width: int, target_width: int):
        self._widths = source_width, target_width
        self._num_rows = 0
        # Slot i holds the rows that have _rooms[i] left.
        self._rooms: list[tuple[int, int]] = []
        self._rows: list[list[range]] = []
        self._slots: dict[tuple[int, int], int] = {}
        # _rooms again, each times the other side's width, which brings both to one scale.
        self._scaled = np.empty((2, 1024), np.int64)

    def new(self, count: int) -> range:
        """Numbers for new rows."""
        self._num_rows += count
        return range(self._num_rows - count, self._num_rows)

    def add(self, room: tuple[int, int], rows: range) -> None:
        if room in self._slots:
            self._rows[self._slots[room]].append(rows)
            return
        slot = self._slots[room] = len(self._rooms)
        self._rooms.append(room)
        self._rows.append([rows])
        if slot == self._scaled.shape[1]:
            self._scaled = np.tile(self._scaled, 2)
        self._scaled[:, slot] = room[0] * self._widths[1], room[1] * self._widths[0]

    def place(self, source: int, target: int, count: int):
        """Yields ranges of rows for `count` pairs of these lengths; new rows if none fits."""
        while count:
            slot = self._best(source, target)
            if slot is None:
                room, rows = self._widths, self.new(count)
            else:
                room, rows = self._rooms[slot], self._take(slot, count)
            yield rows
            self.add((room[0] - source, room[1] - target), rows)
            count -= len(rows)

    def _best(self, source: int, target: int) -> int | None:
        """The slot where the larger of the two spaces left would be smallest."""
        if not self._rooms:
            return None
        source_left = self._scaled[0, : len(self._rooms)] - source * self._widths[1]
        target_left = self._scaled[1, : len(self._rooms)] - target * self._widths[0]
        # As unsigned numbers, those below zero become the largest.
        left = np.maximum(source_left.view(np.uint64), target_left.view(np.uint64))
        slot = int(left.argmin())
        return slot if left[slot] < 2**63 else None

    def _take(self, slot: int, count: int) -> range:
        """Takes up to `count` rows out of a slot."""
        rows = self._rows[slot].pop()
        if count < len(rows):
            self._rows[slot].append(rows[count:])
        elif not self._rows[slot]:
            self._remove(slot)
        return rows[:count]

    def _remove(self, slot: int) -> None:
        """Removes a slot; the last one takes its place."""
        del self._slots[self._rooms[slot]]
        room, rows = self._rooms.pop(), self._rows.pop()
        if slot < len(self._rooms):
            self._rooms[slot], self._rows[slot], self._slots[room] = room, rows, slot
            self._scaled[:, slot] = self._scaled[:, len(self._rooms)]
