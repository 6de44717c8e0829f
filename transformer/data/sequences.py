"""Batches for encoder-only models: sequences packed into rows, and the targets."""

import abc
from typing import NamedTuple

import numpy as np

from transformer.data.rows import PackedRows


class Masked(NamedTuple):
    """Packed sequences with masked tokens. A row has at most C sequences and P predictions.

    The loss is the mean over masked tokens plus the mean over sequences, each of a whole update.
    A sum that is divided once by the number of masked tokens gives the same if the second part is
    weighted by the masked tokens per sequence: `weight_B`, one number for all rows of an update.
    """

    tokens_BS: np.ndarray  # 0 is padding
    types_BS: np.ndarray  # 0: sentence A, 1: sentence B
    segments_BS: np.ndarray  # numbers of the row's sequences: 1, 2, ...; 0 is padding
    masked_BP: np.ndarray  # positions of the tokens to predict
    labels_BP: np.ndarray  # these tokens; 0: nothing to predict
    firsts_BC: np.ndarray  # where each sequence begins
    is_random_BC: np.ndarray  # 0: sentence B follows A, 1: it does not; -1: no sequence
    weight_B: np.ndarray


class Labelled(NamedTuple):
    """Packed sequences, each with a class or, for regression, a number."""

    tokens_BS: np.ndarray
    types_BS: np.ndarray
    segments_BS: np.ndarray
    firsts_BC: np.ndarray
    labels_BC: np.ndarray  # float32
    is_real_BC: np.ndarray  # 1: a sequence, 0: none


class LaidOut(NamedTuple):
    """Rows of sequences."""

    tokens_BS: np.ndarray
    types_BS: np.ndarray
    segments_BS: np.ndarray
    firsts_BC: np.ndarray
    numbers_BC: np.ndarray  # of the sequences; -1 for none


class PackedSequences(PackedRows):
    """Sequences in rows of `source_width` tokens.

    lengths: the tokens of each sequence. counts: something else in each, such as predictions, of
      which a row has at most `target_width`.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        counts: np.ndarray,
        widths: tuple[int, int],
        seed: int,
        packing: bool,
    ):
        super().__init__((lengths, counts), widths, lengths, seed, packing)
        self.lengths = lengths
        self.most_in_row = int(np.diff(self.row_offsets).max())

    @property
    def fill(self) -> float:
        """The share of positions that hold tokens."""
        return self.num_tokens / (len(self) * self.source_width)

    @abc.abstractmethod
    def tokens_of(self, number: int) -> tuple[np.ndarray, int]:
        """The tokens of a sequence, and how many of them belong to sentence A."""

    def lay_out(self, rows: np.ndarray) -> LaidOut:
        """Lays out these rows, [B]; row -1 is empty."""
        shape = len(rows), self.source_width
        tokens_BS, types_BS, segments_BS = (np.zeros(shape, np.int32) for _ in range(3))
        firsts_BC = np.zeros((len(rows), self.most_in_row), np.int32)
        numbers_BC = np.full((len(rows), self.most_in_row), -1)
        for b, row in enumerate(rows):
            first = 0
            for column, number in enumerate(self.pairs_of(np.array([row]))):
                tokens, num_a = self.tokens_of(number)
                end = first + len(tokens)
                tokens_BS[b, first:end] = tokens
                types_BS[b, first + num_a : end] = 1
                segments_BS[b, first:end] = column + 1
                firsts_BC[b, column], numbers_BC[b, column] = first, number
                first = end
        return LaidOut(tokens_BS, types_BS, segments_BS, firsts_BC, numbers_BC)
