"""Scores of classes and of numbers, by scikit-learn and SciPy."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from transformer.system.packages import optional_module

EXTRA = "bert"


def class_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`accuracy`, `f1` and `matthews`, each `{"score", "definition"}`, times 100.

    With two classes, F1 is that of the last in their order (1 of 0 and 1); with more, the mean of
    all.
    """
    metrics = optional_module("sklearn.metrics", EXTRA)
    labels = sorted({*hypotheses, *references})
    if len(labels) <= 2:
        kind = {"average": "binary", "pos_label": labels[-1]}
        of = f"of class {labels[-1]}"
    else:
        kind, of = {"average": "macro"}, f"mean of {len(labels)} classes"
    f1 = metrics.f1_score(references, hypotheses, zero_division=0.0, **kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where there is only one class
        matthews = metrics.matthews_corrcoef(references, hypotheses)
    found = {
        "accuracy": (metrics.accuracy_score(references, hypotheses), "per cent that is right"),
        "f1": (f1, f"F1, {of}, times 100"),
        "matthews": (matthews, "Matthews correlation, times 100"),
    }
    return {name: _entry(*score) for name, score in found.items()}


def number_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """`spearman` and `pearson`, times 100; 0 where all numbers are equal."""
    stats = optional_module("scipy.stats", EXTRA)
    numbers = [float(x) for x in hypotheses], [float(x) for x in references]
    found = {}
    for name, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            score = float(function(*numbers).statistic) if len(numbers[0]) > 1 else 0.0
        score = 0.0 if math.isnan(score) else score
        found[name] = _entry(score, f"{name.capitalize()} correlation, times 100")
    return found


def _entry(score: float, definition: str) -> dict[str, Any]:
    return {"score": 100 * float(score), "definition": definition}
