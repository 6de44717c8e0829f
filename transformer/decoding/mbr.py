"""Minimum Bayes risk: of several candidates, the one that is most like all of them.

Eikema and Aziz 2020 (arXiv 2005.10283) take samples of the model as candidates and as references;
Freitag et al. 2022 (arXiv 2111.09388) compare utilities.
"""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from transformer.data.text_files import check_lines
from transformer.system.errors import UserError


def by_utility(candidates: Sequence[str]) -> list[int]:
    """The order of the candidates by their mean sentence chrF against all of them, best first.

    Candidates are references as often as they occur. Of equally good ones the first stays first.
    """
    chrf, counts = CHRF(), Counter(candidates)
    utility = {
        candidate: sum(
            count * chrf.sentence_score(candidate, [reference]).score
            for reference, count in counts.items()
        )
        for candidate in counts
    }
    return sorted(range(len(candidates)), key=lambda i: -utility[candidates[i]])


def chosen(lines: Sequence[str], nbest: int, rows: Sequence[str] | None) -> list[str]:
    """One of each `nbest` candidates. rows: the lines of rerank --scores."""
    if len(lines) % nbest:
        raise UserError(
            f"--candidates has {len(lines)} lines, which is no multiple of --nbest={nbest}; give "
            "the --nbest that it was written with, and a file of --format=text"
        )
    if rows is not None:
        check_lines({"--candidates": len(lines), "--scores": len(rows)})
        scores = [_mean(row, f"--scores, line {number}") for number, row in enumerate(rows, 1)]
    found = []
    for start in range(0, len(lines), nbest):
        # A source with fewer candidates has blank lines for the rest.
        places = [i for i in range(start, start + nbest) if lines[i].strip()] or [start]
        if rows is None:
            best = places[by_utility([lines[i] for i in places])[0]]
        else:
            best = max(places, key=scores.__getitem__)
        found.append(lines[best])
    return found


def _mean(row: str, place: str) -> float:
    """The mean of the numbers in a line."""
    try:
        numbers = [float(word) for word in row.split()]
    except ValueError:
        numbers = []
    if not numbers or any(x != x for x in numbers):
        raise UserError(f"{place} is {row!r:.60}; it must have a number, or several between spaces")
    return sum(numbers) / len(numbers)
