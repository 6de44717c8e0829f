"""Constituency trees: Penn brackets, and the sequences that a model writes.

A sequence has a token for each bracket and for each word: "John has a dog ." becomes
`(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S` (Vinyals et al. 2015). So it has one token for each
word of the sentence, and two for each constituent.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformer.data.words import BLANKS
from transformer.system.errors import UserError

ROOTS = frozenset({"", "S1", "TOP", "ROOT"})
TOP = "TOP"  # the root that a tree gets if it has no constituent to be its root
ANY_TAG = "XX"
DEEPEST = 150  # nested brackets, in a tree that is read
# Open brackets, and stray closing ones, in a repaired tree, so that it can be read again.
_MOST_OPEN, _MOST_STRAY = 80, 40
_TRACE = "-NONE-"
_TOKEN = re.compile(rf"[()]|[^{BLANKS}()]+")
_PIECE = re.compile(rf"[()][^{BLANKS}()]*|[^{BLANKS}()]+")  # of a sequence
# How treebanks write brackets that are words.
_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
_OWN_TAGS = {
    **dict.fromkeys(".?!", "."),
    **dict.fromkeys([":", ";", "--", "...", "-"], ":"),
    **{",": ",", "``": "``", "''": "''", '"': "''"},
    **{name: name for name in ("-LRB-", "-RRB-")},
}


class Tree(NamedTuple):
    """A constituent with children, or a tag with a word and no children."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def leaves(self) -> Iterator["Tree"]:
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"


def read_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees of a text, each on one line or on several.

    Raises UserError for text that is no tree; `name` is the name of the text in it.
    """
    stack: list[tuple[str, list[Tree], list[str], int]] = []  # label, children, words, line

    def wrong(line: int, what: str) -> UserError:
        return UserError(f"{name}, line {line}: {what}")

    def beside(line: int, word: str) -> UserError:
        return wrong(
            line,
            f"the word {word!r:.40} stands beside brackets; write brackets that belong to words "
            "as -LRB- and -RRB-",
        )

    last = ""
    for number, line in enumerate(lines, start=1):
        for token in _TOKEN.findall(line):
            if token == "(":
                if len(stack) == DEEPEST:
                    raise wrong(number, f"more than {DEEPEST} brackets in each other; check them")
                if stack and stack[-1][2]:
                    raise beside(number, stack[-1][2][0])
                stack.append(("", [], [], number))
            elif token != ")":
                if not stack:
                    raise wrong(number, f"{token!r:.40} stands outside of brackets; remove it")
                label, children, words, began = stack[-1]
                if last == "(":
                    stack[-1] = (token, children, words, began)
                elif children:
                    raise beside(number, token)
                else:
                    words.append(token)
            elif not stack:
                raise wrong(number, "a bracket is closed that was not opened; remove it")
            else:
                label, children, words, _ = stack.pop()
                if len(words) > 1:
                    raise wrong(number, f"({label} has {len(words)} words; give each a tag")
                if not words and not children:
                    raise wrong(number, f"({label}) is an empty tree; remove it")
                tree = Tree(label, tuple(children), words[0] if words else None)
                if stack:
                    stack[-1][1].append(tree)
                else:
                    yield tree
            last = token
    if stack:
        raise wrong(stack[0][3], "the tree that begins here is not closed; check its brackets")


def cleaned(tree: Tree, *, remove_traces: bool, remove_functions: bool) -> Tree | None:
    """The tree, with another root if it needs one; None if nothing is left.

    remove_traces: removes leaves tagged -NONE-, and constituents that have no other words.
    remove_functions: removes the part of a label after - or =, such as SBJ-1 in NP-SBJ-1.
    """

    def clean(node: Tree) -> Tree | None:
        if node.word is not None:
            return None if remove_traces and node.label == _TRACE else node
        children = tuple(filter(None, map(clean, node.children)))
        label = re.split("[-=]", node.label)[0] if remove_functions else node.label
        return node._replace(label=label or node.label, children=children) if children else None

    tree = clean(tree)
    while tree and tree.label in ROOTS and len(tree.children) == 1 and tree.children[0].children:
        tree = tree.children[0]
    if tree and tree.word is not None:
        return Tree(TOP, (tree,))
    return tree and (tree._replace(label=TOP) if tree.label in ROOTS else tree)


def linearised(tree: Tree, *, with_tags: bool) -> list[str]:
    """The sequence of a tree; XX stands for each tag unless `with_tags`."""
    if tree.word is not None:
        return [tree.label if with_tags else ANY_TAG]
    inside = [x for child in tree.children for x in linearised(child, with_tags=with_tags)]
    return [f"({tree.label}", *inside, f"){tree.label}"]


def is_well_formed(tokens: Sequence[str], num_words: int) -> bool:
    """True if the sequence is that of one tree with `num_words` words."""
    open_labels, words, last = [], 0, ""
    for place, token in enumerate(tokens):
        if (place and not open_labels) or not _PIECE.fullmatch(token):
            return False
        if token.startswith("("):
            open_labels.append(token[1:])
        elif token.startswith(")"):
            if last.startswith("(") or not open_labels or open_labels.pop() != token[1:]:
                return False
        else:
            words += 1
        last = token
    return bool(tokens) and not open_labels and words == num_words and last.startswith(")")


def repaired(
    tokens: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
) -> Tree:
    """The tree of any sequence, even a malformed one; always over these words.

    A closing bracket closes the nearest open one of its label, and those inside it. Without an
    open one, it takes all that stands before it at this level. Brackets that stay open are closed
    at the end. Brackets nested too deeply are ignored. Surplus words are left out; missing words
    join the root. A bracket inside a token begins another token, as in (S(NP.
    tags: the tags of the words; None: those of the sequence.
    """
    root = ("", [])
    stray = 0
    stack: list[tuple[str, list[Tree]]] = [root]
    used = 0

    def close() -> None:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))

    for token in _PIECE.findall(" ".join(tokens)):
        if token.startswith("("):
            if len(stack) <= _MOST_OPEN:
                stack.append((token[1:], []))
        elif token.startswith(")"):
            if any(label == token[1:] for label, _ in stack[1:]):
                while stack[-1][0] != token[1:]:
                    close()
                close()
            elif stack[-1][1] and stray < _MOST_STRAY:
                stray += 1
                children = stack[-1][1]
                whole = Tree(token[1:], tuple(children))
                children[:] = [whole]
        elif used < len(words):
            tag = tags[used] if tags else token
            stack[-1][1].append(Tree(tag, (), words[used]))
            used += 1
    while len(stack) > 1:
        close()
    rest = [
        Tree(tags[i] if tags else own_tag(words[i]), (), words[i]) for i in range(used, len(words))
    ]
    children = root[1]
    if len(children) == 1 and children[0].children:  # one tree: the rest joins it
        return children[0]._replace(children=(*children[0].children, *rest))
    return Tree(TOP, (*children, *rest))


def own_tag(word: str) -> str:
    """The tag of a word that is punctuation; XX for others."""
    return _OWN_TAGS.get(word, ANY_TAG)


def escaped(word: str) -> str:
    """A word as treebanks write it: without brackets."""
    return "".join(_BRACKETS.get(character, character) for character in word)
