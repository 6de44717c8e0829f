"""Batches of an encoder alone: rows of sequences, what is to be predicted, and their plan."""

from typing import NamedTuple

import numpy as np


class Masked(NamedTuple):
    """Packed sequences with masked tokens. C is the most sequences of a row, P its predictions.

    The loss is the mean over masked tokens plus the mean over sequences, each of a whole update.
    A sum over masked tokens, divided once by their number, is that if the second part is weighted
    with masked tokens per sequence: `weight_B`, one number for all rows of an update.
    """

    tokens_BS: np.ndarray  # 0 is padding
    types_BS: np.ndarray  # 0: sentence A, 1: sentence B
    segments_BS: np.ndarray  # which sequence of the row: 1, 2, ...; 0 is padding
    masked_BP: np.ndarray  # positions whose token is to be predicted
    labels_BP: np.ndarray  # these tokens; 0: nothing is to be predicted
    firsts_BC: np.ndarray  # where each sequence begins
    is_random_BC: np.ndarray  # 0: sentence B follows A, 1: it does not; -1: no sequence
    weight_B: np.ndarray


class Labelled(NamedTuple):
    """Packed sequences, each with a class or, of a regression, a number."""

    tokens_BS: np.ndarray
    types_BS: np.ndarray
    segments_BS: np.ndarray
    firsts_BC: np.ndarray
    labels_BC: np.ndarray  # float32
    is_real_BC: np.ndarray  # 1: a sequence, 0: none
