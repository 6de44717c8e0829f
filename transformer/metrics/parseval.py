"""Labelled brackets, scored as EVALB scores them (Sekine and Collins; Ellis's version of 2006)
with COLLINS.prm, the parameters of published results.

A bracket is a label with the words that it spans. A bracket of the output is right if the gold tree
has it. Recall, precision and F1 are over the brackets of all sentences together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformer.data.trees import Tree

OK, ERROR, SKIPPED = 0, 1, 2
_DELETED = frozenset(("TOP", "-NONE-", ",", ":", "``", "''", "."))
_EQUAL = {"PRT": "ADVP"}


class Counts(NamedTuple):
    """The counts of a sentence, or of several. status: OK, ERROR or SKIPPED."""

    status: int = OK
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    words: int = 0
    right_tags: int = 0


def count(gold: Iterable[Tree], test: Iterable[Tree]) -> Counts:
    """The counts of one sentence; each side is a tree, or what its line has instead."""
    (our_leaves, ours), (their_leaves, theirs) = map(_words_and_brackets, (gold, test))
    if not their_leaves:
        return Counts(SKIPPED)
    if [leaf.word for leaf in our_leaves] != [leaf.word for leaf in their_leaves]:
        return Counts(ERROR)
    crossing = sum(any(a < c < b < d or c < a < d < b for a, b, _ in ours) for c, d, _ in theirs)
    tags = zip(*([_same(leaf.label) for leaf in x] for x in (our_leaves, their_leaves)))
    return Counts(
        OK,
        (Counter(ours) & Counter(theirs)).total(),
        len(ours),
        len(theirs),
        crossing,
        len(our_leaves),
        sum(a == b for a, b in tags),
    )


def _words_and_brackets(trees: Iterable[Tree]) -> tuple[list[Tree], list[tuple[int, int, str]]]:
    """The words, and the brackets around them as start, end and label, that EVALB counts."""
    leaves: list[Tree] = []
    brackets: list[tuple[int, int, str]] = []

    def add(tree: Tree) -> None:
        if tree.word is not None:
            if tree.label not in _DELETED:
                leaves.append(tree)
            return
        start = len(leaves)
        for child in tree.children:
            add(child)
        label = min(tree.label.partition("-")[0], tree.label.partition("=")[0], key=len)
        if start < len(leaves) and label not in _DELETED:
            brackets.append((start, len(leaves), _same(label)))

    for tree in trees:
        add(tree)
    return leaves, brackets


def _same(label: str) -> str:
    """One label for those that count as equal."""
    return _EQUAL.get(label, label)


def total(counts: Sequence[Counts]) -> dict[str, float]:
    """EVALB's summary; sentences in error and skipped ones are not in the figures."""
    valid = [x for x in counts if x.status == OK]
    matched, gold, test = (sum(getattr(x, n) for x in valid) for n in ("matched", "gold", "test"))
    recall, precision = _share(matched, gold), _share(matched, test)
    return {
        "sentences": len(counts),
        "errors": sum(x.status == ERROR for x in counts),
        "skipped": sum(x.status == SKIPPED for x in counts),
        "valid": len(valid),
        "recall": recall,
        "precision": precision,
        "f1": 2 * recall * precision / (recall + precision) if matched else 0.0,
        "complete": _share(sum(x.matched == x.gold == x.test for x in valid), len(valid)),
        "crossing": _share(sum(x.crossing for x in valid), len(valid)) / 100,
        "no_crossing": _share(sum(x.crossing == 0 for x in valid), len(valid)),
        "two_or_less_crossing": _share(sum(x.crossing <= 2 for x in valid), len(valid)),
        "tagging": _share(sum(x.right_tags for x in valid), sum(x.words for x in valid)),
    }


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
