"""A tree drawn with characters, its words below each other."""

from transformer.data.trees import Tree


def drawing(tree: Tree) -> str:
    """Lines of text, one for each constituent; its children stand below it, to the right.

    >>> print(drawing(Tree("S", (Tree("NP", (Tree("XX", (), "John"),)), Tree(".", (), ".")))))
    S
    ├── NP
    │   └── XX John
    └── . .
    """
    return "\n".join(_lines(tree))


def _lines(tree: Tree) -> list[str]:
    if tree.word is not None:
        return [f"{tree.label} {tree.word}"]
    lines = [tree.label]
    for child in tree.children:
        is_last = child is tree.children[-1]
        first, *others = _lines(child)
        lines.append(("└── " if is_last else "├── ") + first)
        lines += [("    " if is_last else "│   ") + line for line in others]
    return lines
