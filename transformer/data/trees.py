"""Constituency trees: Penn brackets, and the sequences that a model writes.

A sequence has a token for each bracket and for each word: "John has a dog ." becomes
`(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S` (Vinyals et al. 2015). So it has one token for each
word of the sentence, and two for each constituent.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transformer.data.words import BLANKS
from transformer.system.errors import UserError

ROOTS = frozenset({"", "S1", "TOP", "ROOT"})
TOP = "TOP"  # the root that a tree gets if it has no constituent to be its root
ANY_TAG = "XX"
DEEPEST = 150  # nested brackets, in a tree that is read
_TRACE = "-NONE-"
_TOKEN = re.compile(rf"[()]|[^{BLANKS}()]+")
# How treebanks write brackets that are words.
_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}


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


def escaped(word: str) -> str:
    """A word as treebanks write it: without brackets."""
    return "".join(_BRACKETS.get(character, character) for character in word)
