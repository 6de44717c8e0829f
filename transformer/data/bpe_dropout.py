"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): merges left out at random.

SentencePiece and subword-nmt have it, too, but cannot be used. SentencePiece draws other symbols
in every process, even with the same seed. subword-nmt caches what it draws for a word, and later
returns that even without dropout.
"""

import random
from collections.abc import Callable, Iterable

# Time grows with the square of a word's length, and a web page may be one word.
LONGEST = 500  # characters


def segment(
    symbols: Iterable[str],
    rank: Callable[[str, str], float | None],
    alpha: float,
    rng: random.Random,
) -> list[str]:
    """The symbols of a word after its merges (Algorithm 1); with `alpha` 0 this is BPE.

    symbols: its characters; callers pass no more than LONGEST.
    rank: the rank of the merge of two neighbours, None if there is no such merge. The lowest is
      merged first; of equal ones, the left one.
    alpha: the probability that a merge is left out, drawn again for each merge at each step.
    """
    symbols = list(symbols)
    while True:
        best, where = None, 0
        for i in range(len(symbols) - 1):
            found = rank(symbols[i], symbols[i + 1])
            # A merge that would not be taken anyway needs no draw.
            if found is None or (best is not None and found >= best) or rng.random() < alpha:
                continue
            best, where = found, i
        if best is None:
            return symbols
        symbols[where : where + 2] = [symbols[where] + symbols[where + 1]]
