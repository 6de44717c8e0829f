"""Rows that hold several examples each, and so are nearly full; batches are made of rows."""

import abc
from typing import Any

import numpy as np

from transformer.data.packing import pack


class PackedRows(abc.ABC):
    """Examples in rows; TrainingBatches orders the rows.

    sides: two lengths of each example, such as those of source and target. In a row they add up
      to at most `widths`.
    tokens: the number of tokens of each example.
    packing: lets several examples share a row; otherwise each has a row of its own.
    """

    def __init__(
        self,
        sides: tuple[np.ndarray, np.ndarray],
        widths: tuple[int, int],
        tokens: np.ndarray,
        seed: int,
        packing: bool,
    ):
        row_of = pack(*sides, *widths, seed) if packing else np.arange(len(tokens))
        self.sides = sides
        self.source_width, self.target_width = widths
        self.pairs_by_row = np.argsort(row_of, kind="stable")
        self.row_offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of))])
        self._row_tokens = np.bincount(row_of, tokens).astype(np.int64)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.row_offsets) - 1

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
