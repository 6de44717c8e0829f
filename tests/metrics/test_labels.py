import math

import pytest

from transformer.metrics.labels import class_scores, number_scores


def scores(function, hypotheses, references):
    found = function(hypotheses.split(), references.split())
    assert all(score["definition"] for score in found.values())
    return {name: score["score"] for name, score in found.items()}


def test_two_classes_by_hand():
    """Of class 1: 2 right, 1 too many, 2 missed; of class 0: 3 right."""
    found = scores(class_scores, "1 1 1 0 0 0 0 0", "1 1 0 1 1 0 0 0")
    assert found["accuracy"] == pytest.approx(100 * 5 / 8)
    assert found["f1"] == pytest.approx(100 * 4 / (4 + 1 + 2))
    matthews = (2 * 3 - 1 * 2) / math.sqrt(3 * 4 * 4 * 5)
    assert found["matthews"] == pytest.approx(100 * matthews)


def test_more_classes_and_one():
    found = scores(class_scores, "a b c a", "a b b c")
    assert found["accuracy"] == 50
    assert found["f1"] == pytest.approx(100 * (2 / 3 + 2 / 3 + 0) / 3)
    assert scores(class_scores, "x x", "x x") == {"accuracy": 100, "f1": 100, "matthews": 0}


def test_numbers_by_hand():
    """Ranks 1 2 3 4 and 2 1 3 4: 1 - 6 * 2 / (4 * 15)."""
    found = scores(number_scores, "0.1 0.2 0.3 9", "2 1 3 4")
    assert found["spearman"] == pytest.approx(80)
    assert found["pearson"] == pytest.approx(100 * 13.3 / math.sqrt(58.1 * 5))
    assert scores(number_scores, "1 1 1", "1 2 3") == {"spearman": 0, "pearson": 0}
