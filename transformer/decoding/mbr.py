"""Minimum Bayes risk: of several candidates, the one that is most like all of them.

Eikema and Aziz 2020 (arXiv 2005.10283) take samples of the model as candidates and as references;
Freitag et al. 2022 (arXiv 2111.09388) compare utilities.
"""

from collections import Counter
from collections.abc import Sequence

from sacrebleu.metrics import CHRF


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
