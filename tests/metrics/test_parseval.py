"""Brackets as EVALB counts them."""

import re

import pytest

from transformer.data.trees import read_trees
from transformer.metrics.parseval import (
    COLLINS,
    ERROR,
    SKIPPED,
    Parameters,
    count,
    read_parameters,
    total,
)
from transformer.runs.provenance import ROOT
from transformer.system.errors import UserError

# EVALB's own samples; they are not ours to ship.
SHARED = next((p for x in ROOT.parents if (p := x / "shared/data/evalb").exists()), None)


def counted(gold, test, parameters=COLLINS):
    return count(read_trees([gold], "gold"), read_trees([test], "test"), parameters)


def test_labels_spans_and_multiplicity():
    gold = "(S (NP (NP (DT a) (NN b))) (VP-X (V c)) (. .))"
    found = counted(gold, "(S (NP (DT a) (NN b)) (XP (V c)) (. .))")
    assert (found.matched, found.gold, found.test) == (2, 4, 3)
    assert (found.words, found.length, found.right_tags) == (3, 4, 3)
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


def test_parameters():
    lines = ["# c", "", "DELETE_LABEL TOP", "EQ_LABEL A B", "EQ_WORD x y", "LABELED 0", "DEBUG 0"]
    found = read_parameters(lines, "p")
    assert found == Parameters(False, ("TOP",), (), (), (("A", "B"),), (("x", "y"),))
    assert counted("(S (A (X x)))", "(T (T (X y)))", found).matched == 2
    with pytest.raises(UserError, match="p, line 1 is no line of EVALB's parameters: DELETE"):
        read_parameters(["DELETE"], "p")


@pytest.mark.skipif(SHARED is None, reason="needs ../shared/data/evalb")
@pytest.mark.parametrize(
    ("name", "parameters", "results"),
    [
        ("sample/sample", "sample/sample.prm", "sample/sample.rsl"),
        ("bug/bug", "new.prm", "bug/bug.rsl-new"),
        ("bug/bug", "COLLINS.prm", "bug/bug.rsl-old"),
    ],
)
def test_evalbs_own_samples(name, parameters, results):
    """Sentence by sentence, and in the summary."""
    p = read_parameters((SHARED / parameters).read_text().splitlines(), parameters)
    gold, test = ((SHARED / f"{name}.{end}").read_text().splitlines() for end in ("gld", "tst"))
    found = [counted(a, b, p) for a, b in zip(gold, test, strict=True)]
    text = (SHARED / results).read_text()
    lines = re.findall(r"^ *\d+ +(\d+) +(\d) .*$", text, re.M)
    assert [(x.length, x.status) for x in found] == [(int(a), int(b)) for a, b in lines]
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+ +\d+ +0 ", line)]
    valid = [x for x in found if x.status == 0]
    assert [list(x[2:]) for x in valid] == [list(map(int, row[5:11])) for row in rows]
    summary = text[text.index("-- All --") : text.index("-- len")]
    figures = re.findall(r"= +([\d.]+)", summary)
    ours = total(found)
    names = ["sentences", "errors", "skipped", "valid", "recall", "precision"]
    names += ["f1"] * ("FMeasure" in summary and valid != [])
    names += ["complete", "crossing", "no_crossing", "two_or_less_crossing", "tagging"]
    assert figures == [f"{ours[n]:.2f}" if i > 3 else str(ours[n]) for i, n in enumerate(names)]
