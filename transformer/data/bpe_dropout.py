"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): merges left out at random.

SentencePiece and subword-nmt have it, too. But the one draws other symbols in every process,
whatever its seed, and the other keeps what it draws for a word: asked for that word without
dropout later, it gives the symbols that it drew.
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
    """The symbols of a word after its merges, Algorithm 1; with `alpha` 0, those of BPE.

    symbols: its characters, at best no more than LONGEST.
    rank: of the merge of two neighbours; the lowest goes first, and of equal ones the left one.
      None if there is no such merge.
    alpha: the probability that a merge is left out, drawn anew for each at each step.
    """
    symbols = list(symbols)
    while True:
        best, where = None, 0
        for i in range(len(symbols) - 1):
            found = rank(symbols[i], symbols[i + 1])
            # Of one that would not be taken anyway, nothing need be drawn.
            if found is None or (best is not None and found >= best) or rng.random() < alpha:
                continue
            best, where = found, i
        if best is None:
            return symbols
        symbols[where : where + 2] = [symbols[where] + symbols[where + 1]]
