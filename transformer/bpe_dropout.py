"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): merges left out at random.

SentencePiece and subword-nmt have it, too. But with one seed the former draws other symbols in
every process, and the latter takes those that it drew last for all that a word has.
"""

import random
from collections.abc import Callable, Iterable


def segment(
    symbols: Iterable[str],
    rank: Callable[[str, str], float | None],
    alpha: float,
    rng: random.Random,
) -> list[str]:
    """The symbols of a word after its merges, Algorithm 1; with `alpha` 0, those of BPE.

    symbols: its characters.
    rank: of the merge of two neighbours, the lowest first; None if there is no such merge.
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
