"""Rows that hold several examples each, and so are nearly full; batches are made of rows."""

import abc
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.packing import pack
from transformer.data.prefetch import prefetch
from transformer.data.remembered import Facts, remembered

# Examples that are packed together: packing takes 60 bytes for each. With another number, larger
# corpora have other rows.
_BLOCK = 2**23


class PackedRows(abc.ABC):
    """Examples in rows; TrainingBatches orders the rows.

    sides: two lengths of each example, such as those of source and target. In a row they add up
      to at most `widths`.
    tokens: the number of tokens of each example.
    packing: lets several examples share a row; otherwise each has a row of its own.
    corpora: the numbers of examples of corpora, one after the other; a row is of one corpus.
    weights: how many times an epoch has each corpus. Of 0.5, each epoch has the half that the one
      before it had not.
    """

    def __init__(
        self,
        sides: tuple[np.ndarray, np.ndarray],
        widths: tuple[int, int],
        tokens: np.ndarray,
        seed: int,
        packing: bool,
        corpora: Sequence[int] = (),
        weights: Sequence[float] = (1.0,),
    ):
        counts = corpora or (len(tokens),)
        parts, ends, end = [], [], 0
        for count in counts:
            firsts = range(end, end := end + count, _BLOCK)
            parts += [slice(first, min(first + _BLOCK, end)) for first in firsts]
            ends.append(len(parts))

        def rows_of(part: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """The examples by row, and the numbers of examples and of tokens of each row."""
            sizes = [side[part] for side in sides]
            rows = pack(*sizes, *widths, seed) if packing else np.arange(len(sizes[0]))
            by_row = part.start + np.argsort(rows, kind="stable")
            return by_row, np.bincount(rows), np.bincount(rows, tokens[part]).astype(np.int64)

        def plan() -> Facts:
            done = list(prefetch(rows_of, parts, ahead=1, threads=2))
            names, arrays = ("by_row", "sizes", "tokens"), zip(*done, strict=True)
            found = {x: np.concatenate(y) for x, y in zip(names, arrays, strict=True)}
            return found | {"rows": np.cumsum([0, *(len(sizes) for _, sizes, _ in done)])}

        content = hashlib.sha256()
        for array in (*sides, tokens):
            content.update(array)
        version = 1, _BLOCK, np.__version__
        key = ["rows", *version, content.hexdigest(), *counts, *widths, seed, packing]
        found = remembered(key, plan)
        firsts = [0, *found["rows"][ends].tolist()]
        self.corpora = [np.arange(*both) for both in itertools.pairwise(firsts)]
        self._whole = [int(weight) for weight in weights]
        rest = [weight % 1 for weight in weights]
        # At least one row, so that a small corpus is not lost.
        both = zip(rest, self.corpora, strict=True)
        self._more = [max(1, round(x * len(rows))) if x else 0 for x, rows in both]
        self.sides = sides
        self.source_width, self.target_width = widths
        self.pairs_by_row, self._row_tokens = found["by_row"], found["tokens"]
        self.row_offsets = np.concatenate([[0], np.cumsum(found["sizes"])])

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.row_offsets) - 1

    @property
    def rows_of_corpora(self) -> list[int]:
        """The number of rows of each corpus in an epoch."""
        parts = zip(self._whole, self._more, self.corpora, strict=True)
        return [whole * len(rows) + more for whole, more, rows in parts]

    @property
    def shares(self) -> list[float]:
        """The part of an epoch's tokens that each corpus has."""
        of_row = [self._row_tokens[rows].mean() for rows in self.corpora]
        tokens = np.array(of_row) * self.rows_of_corpora
        return (tokens / tokens.sum()).tolist()

    def epoch(self, seed: int, number: int) -> np.ndarray:
        """The rows of an epoch in their order, which depends only on the arguments."""
        chosen = []
        for corpus, rows in enumerate(self.corpora):
            chosen += self._whole[corpus] * [rows]
            if more := self._more[corpus]:
                turn = np.random.default_rng((seed, 2, corpus)).permutation(rows)
                chosen.append(turn[(number * more + np.arange(more)) % len(rows)])
        rng = np.random.default_rng((seed, 1, number))
        return rng.permutation(np.concatenate(chosen))

    @property
    def most_examples(self) -> int:
        """Of a row."""
        return int(np.diff(self.row_offsets).max())

    @property
    def num_tokens(self) -> int:
        """Of all examples, padding excluded."""
        return int(self._row_tokens.sum())

    def num_tokens_of(self, rows: np.ndarray) -> int:
        """The tokens in these rows; row -1 is empty."""
        return int(self._row_tokens[rows[rows >= 0]].sum())

    def pairs_of(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of the examples in these rows; row -1 is empty."""
        rows = rows[rows >= 0]
        parts = [self.pairs_by_row[self.row_offsets[r] : self.row_offsets[r + 1]] for r in rows]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @abc.abstractmethod
    def batch(self, rows: np.ndarray) -> Any:
        """The batch of these rows, in the shape of `rows`; row -1 is empty."""


class SingleRows:
    """The numbers of `count` examples, each in a row of its own, in the order of PackedRows."""

    def __init__(self, count: int):
        self.rows_of_corpora = [count]

    def epoch(self, seed: int, number: int) -> np.ndarray:
        return np.random.default_rng((seed, 1, number)).permutation(self.rows_of_corpora[0])
