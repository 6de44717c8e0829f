"""Labelled brackets, scored as EVALB scores them (Sekine and Collins; Ellis's version of 2006).

A bracket is a label with the words that it spans. A bracket of the output is right if the gold tree
has it. Recall, precision and F1 are over the brackets of all sentences together.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformer.data.trees import Tree
from transformer.data.words import words_of
from transformer.system.errors import UserError

OK, ERROR, SKIPPED = 0, 1, 2
_QUOTES = ("'", '"', "/")


class Parameters(NamedTuple):
    """A parameter file of EVALB; the default is COLLINS.prm, with which results are published."""

    labeled: bool = True
    delete: tuple[str, ...] = ("TOP", "-NONE-", ",", ":", "``", "''", ".")
    delete_for_length: tuple[str, ...] = ("-NONE-",)
    quotes: tuple[str, ...] = ()
    equal_labels: tuple[tuple[str, ...], ...] = (("ADVP", "PRT"),)
    equal_words: tuple[tuple[str, ...], ...] = ()


COLLINS = Parameters()


class Counts(NamedTuple):
    """The counts of a sentence, or of several. status: OK, ERROR or SKIPPED."""

    length: int = 0
    status: int = OK
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    words: int = 0
    right_tags: int = 0


class _Quote(NamedTuple):
    """A word that may be a quotation mark."""

    leaf: Tree
    place: int  # among the words that are not deleted
    bracket: int  # how many brackets were opened before it
    around: tuple[int, ...]  # brackets that are open there


class _Sentence:
    """Words that are not deleted, and brackets as [start, end, label], as EVALB reads them."""

    def __init__(self, trees: Iterable[Tree], parameters: Parameters):
        self.leaves: list[Tree] = []
        self.brackets: list[list] = []
        self.quotes: list[_Quote] = []
        self.length = 0
        self._parameters = parameters
        for tree in trees:
            self._add(tree, ())

    def _add(self, tree: Tree, around: tuple[int, ...]) -> None:
        p = self._parameters
        if tree.word is not None:
            self.length += tree.label not in p.delete_for_length
            if tree.label in p.quotes and tree.word in _QUOTES:
                place = len(self.leaves)
                self.quotes.append(_Quote(tree, place, len(self.brackets), around))
            if tree.label not in p.delete:
                self.leaves.append(tree)
            return
        number = len(self.brackets)
        self.brackets.append([len(self.leaves), None, tree.label])
        for child in tree.children:
            self._add(child, (*around, number))
        self.brackets[number][1] = len(self.leaves)

    def insert(self, number: int) -> None:
        """Puts a deleted quotation mark back."""
        leaf, place, bracket, around = self.quotes[number]
        self.leaves.insert(place, leaf)
        for own in self.brackets[bracket:]:
            own[0] += 1
            own[1] += 1
        for i in around:
            self.brackets[i][1] += 1
        for i in range(number, len(self.quotes)):
            self.quotes[i] = self.quotes[i]._replace(place=self.quotes[i].place + 1)

    def counted(self) -> list[list]:
        """The brackets that count, with labels cut at - and =."""
        p, found = self._parameters, []
        for start, end, label in self.brackets:
            label = _cut(label)
            if start < end and not any(_same(label, x, p.equal_labels) for x in p.delete):
                found.append([start, end, label])
        return found


def count(gold: Iterable[Tree], test: Iterable[Tree], p: Parameters = COLLINS) -> Counts:
    """The counts of one sentence; each side is a tree, or what its line has instead."""
    gold, test = _Sentence(gold, p), _Sentence(test, p)
    nothing = Counts(length=gold.length, status=ERROR)
    if not test.leaves:
        return nothing._replace(status=SKIPPED)
    if len(gold.leaves) != len(test.leaves):
        _mend_quotes(gold, test, p)
    if len(gold.leaves) != len(test.leaves):
        return nothing
    pairs = list(zip(gold.leaves, test.leaves, strict=True))
    if not all(_same(a.word, b.word, p.equal_words) for a, b in pairs):
        return nothing
    ours, theirs = gold.counted(), test.counted()
    left, matched = list(theirs), 0
    for start, end, label in ours:
        for other in left:
            is_there = other[:2] == [start, end]
            if is_there and (not p.labeled or _same(label, other[2], p.equal_labels)):
                left.remove(other)
                matched += 1
                break
    crossing = sum(any(a < c < b < d or c < a < d < b for a, b, _ in ours) for c, d, _ in theirs)
    right_tags = sum(_same(a.label, b.label, p.equal_labels) for a, b in pairs)
    return Counts(
        gold.length, OK, matched, len(ours), len(theirs), crossing, len(pairs), right_tags
    )


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


def read_parameters(lines: Iterable[str], name: str) -> Parameters:
    """A parameter file; raises UserError for a line that EVALB would not read."""
    found: dict[str, list] = {}
    for number, line in enumerate(lines, start=1):
        words = words_of(line)
        if not words or words[0].startswith("#"):
            continue
        sizes = {"EQ_LABEL": 3, "EQ_WORD": 3}
        if words[0] not in _KEYS or len(words) != sizes.get(words[0], 2):
            raise UserError(f"{name}, line {number} is no line of EVALB's parameters: {line:.60}")
        found.setdefault(words[0], []).append(tuple(words[1:]))
    single = {key: tuple(x[0] for x in found.get(key, [])) for key in _KEYS}
    return Parameters(
        labeled=single["LABELED"][-1:] != ("0",),
        delete=single["DELETE_LABEL"],
        delete_for_length=single["DELETE_LABEL_FOR_LENGTH"],
        quotes=single["QUOTE_LABEL"],
        equal_labels=tuple(found.get("EQ_LABEL", ())),
        equal_words=tuple(found.get("EQ_WORD", ())),
    )


_KEYS = (
    *("DEBUG", "MAX_ERROR", "CUTOFF_LEN", "LABELED", "DELETE_LABEL"),
    *("DELETE_LABEL_FOR_LENGTH", "QUOTE_LABEL", "EQ_LABEL", "EQ_WORD"),
)


def _mend_quotes(gold: _Sentence, test: _Sentence, p: Parameters) -> None:
    """Puts a mark back that is deleted on only one side, because it has another tag there."""
    for i in range(len(test.quotes)):
        place = test.quotes[i].place
        for j in range(len(gold.quotes)):
            ours, theirs = gold.quotes[j], test.quotes[i]
            if ours.place == place and ours.leaf.label != theirs.leaf.label:
                is_ours, is_theirs = ours.leaf.label in p.delete, theirs.leaf.label in p.delete
                if is_ours and not is_theirs:
                    gold.insert(j)
                elif is_theirs and not is_ours:
                    test.insert(i)


def _cut(label: str) -> str:
    return min(label.partition("-")[0], label.partition("=")[0], key=len)


def _same(a: str, b: str, equal: Sequence[tuple[str, ...]]) -> bool:
    return a == b or (a, b) in equal or (b, a) in equal


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
