"""The sequences that a parser writes, as trees: which ones are trees, and how others are mended."""

import re
from collections.abc import Sequence

from transformer.data.trees import ANY_TAG, TOP, Tree
from transformer.data.words import BLANKS

# Open brackets, and stray closing ones, in a mended tree, so that it can be read again.
_MOST_OPEN, _MOST_STRAY = 80, 40
_PIECE = re.compile(rf"[()][^{BLANKS}()]*|[^{BLANKS}()]+")  # of a sequence
_OWN_TAGS = {
    **dict.fromkeys(".?!", "."),
    **dict.fromkeys([":", ";", "--", "...", "-"], ":"),
    **{",": ",", "``": "``", "''": "''", '"': "''"},
    **{name: name for name in ("-LRB-", "-RRB-")},
}


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
