"""Brackets as EVALB counts them."""

import re

import pytest

from transformer.data.trees import read_trees
from transformer.metrics.parseval import ERROR, SKIPPED, count, total
from transformer.runs.provenance import ROOT

# EVALB's own samples; they are not ours to ship.
SHARED = next((p for x in ROOT.parents if (p := x / "shared/data/evalb").exists()), None)


def counted(gold, test):
    return count(read_trees([gold], "gold"), read_trees([test], "test"))


def test_labels_spans_and_multiplicity():
    gold = "(S (NP (NP (DT a) (NN b))) (VP-X (V c)) (. .))"
    found = counted(gold, "(S (NP (DT a) (NN b)) (XP (V c)) (. .))")
    assert (found.matched, found.gold, found.test) == (2, 4, 3)
    assert (found.words, found.right_tags) == (3, 3)
    figures = total([found, counted(gold, gold)])
    assert figures["recall"] == pytest.approx(100 * 6 / 8)
    assert figures["precision"] == pytest.approx(100 * 6 / 7)
    assert figures["complete"] == 50


def test_crossing_brackets():
    found = counted("(S (A (X a) (X b)) (X c))", "(S (X a) (A (X b) (X c)))")
    assert (found.crossing, found.matched) == (1, 1)


def test_errors_and_skipped_sentences_are_not_in_the_figures():
    gold = "(S (A (X a)) (X b))"
    other, shorter, none = (counted(gold, x) for x in ("(S (X a) (X c))", "(S (X a))", ""))
    assert [x.status for x in (other, shorter, none)] == [ERROR, ERROR, SKIPPED]
    assert total([other, none])["f1"] == 0
    assert total([other, none, counted(gold, gold)])["f1"] == 100


def test_equal_labels():
    assert counted("(S (ADVP (X x)))", "(S (PRT-Y (X x)))").matched == 2


@pytest.mark.skipif(SHARED is None, reason="needs ../shared/data/evalb")
def test_evalbs_own_sample():
    """Sentence by sentence, and in the summary. Other labels and words are equal there."""
    gold, test = ((SHARED / f"sample/sample.{end}").read_text() for end in ("gld", "tst"))
    test = test.replace("(TT ", "(T ").replace("(P This)", "(P this)")
    gold, test = gold.splitlines(), test.splitlines()
    found = [counted(a, b) for a, b in zip(gold, test, strict=True)]
    text = (SHARED / "sample/sample.rsl").read_text()
    statuses = re.findall(r"^ *\d+ +\d+ +(\d) .*$", text, re.M)
    assert [x.status for x in found] == list(map(int, statuses))
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+ +\d+ +0 ", line)]
    valid = [x for x in found if x.status == 0]
    assert [list(x[1:]) for x in valid] == [list(map(int, row[5:11])) for row in rows]
    summary = text[text.index("-- All --") : text.index("-- len")]
    figures = re.findall(r"= +([\d.]+)", summary)
    ours = total(found)
    names = ["sentences", "errors", "skipped", "valid", "recall", "precision"]
    names += ["complete", "crossing", "no_crossing", "two_or_less_crossing", "tagging"]
    assert figures == [f"{ours[n]:.2f}" if i > 3 else str(ours[n]) for i, n in enumerate(names)]


@pytest.mark.skipif(SHARED is None, reason="needs ../shared/data/evalb")
def test_sentences_that_evalb_counts_as_errors():
    gold, test = ((SHARED / f"bug/bug.{end}").read_text().splitlines() for end in ("gld", "tst"))
    found = [counted(a, b).status for a, b in zip(gold, test, strict=True)]
    expected = re.findall(r"^ *\d+ +\d+ +(\d) .*$", (SHARED / "bug/bug.rsl-old").read_text(), re.M)
    assert found == list(map(int, expected)) == 5 * [ERROR]
