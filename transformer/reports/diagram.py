"""A diagram of a model, drawn from its modules as Figure 1 of the paper is: inputs below."""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from matplotlib.patches import FancyBboxPatch

from transformer.reports.model_summary import Part, Summary, size
from transformer.reports.pages import Picture

WIDTH, HEIGHT, GAP = 3.4, 0.46, 0.12  # of a box, in inches; and the space around it
BETWEEN = 0.7  # the two sides of a model
# The colour of a box, by a part of its name; nearly the paper's.
COLOURS = {
    "norm": "#f3f6c1",
    "attention": "#fde0bb",
    "alignment": "#fde0bb",
    "output": "#dde0ee",
    "logits": "#dde0ee",
    "embedding": "#fce1e0",
    "position": "#fce1e0",
    "token_types": "#fce1e0",
}
OTHER, FRAME = "#c9e8f5", "#f5f5f5"
SIDES = {"encoder", "source", "generator"}, {"decoder", "target", "discriminator"}
TO_SOURCE = ("cross_attention", "attentions", "alignment")
FRAMED = 3  # levels of modules in a part that is drawn with what is inside


def diagram(summary: Summary) -> Picture:
    """Boxes of modules, with the sizes of their matrices and numbers of parameters.

    A frame is around what contains layers; "6 x" says that six of them stand on each other. The
    source is on the left; arrows lead from its top to the attention over it.
    """
    columns, root = _columns(summary), summary.root
    tall = max(sum(map(_height, column)) for column in columns) + 2 * BETWEEN
    wide = len(columns) * (WIDTH + BETWEEN) + BETWEEN
    figure = Picture(wide, tall + 0.5)
    axes = figure.subplots()
    axes.set(xlim=(0, wide), ylim=(0, tall))
    axes.axis("off")
    flops = f"{root.flops / 1e6:,.4g} million FLOPs to read {' and '.join(summary.inputs)}"
    axes.set_title(f"{root.name}: {root.parameters:,} parameters\n{flops}", fontsize=9)
    tops, to_source = [], []
    for i, column in enumerate(columns):
        left, y = BETWEEN + i * (WIDTH + BETWEEN), BETWEEN
        middle = left + WIDTH / 2
        read = summary.inputs[i : i + 1] if len(columns) > 1 else summary.inputs
        axes.text(middle, 0.15, " and ".join(read), ha="center", fontsize=8)
        _arrow(axes, [(middle, 0.33), (middle, BETWEEN)])
        for part in column:
            to_source += _draw(axes, part, left, y, WIDTH)
            y += _height(part)
        tops.append((middle, y))
    for to in to_source if len(columns) > 1 else ():
        (x, y), turn = tops[0], BETWEEN * 1.5 + WIDTH
        _arrow(axes, [(x, y), (x, y + 0.2), (turn, y + 0.2), (turn, to[1]), to])
    _arrow(axes, [tops[-1], (tops[-1][0], tops[-1][1] + 0.4)])
    return figure


def _columns(summary: Summary) -> list[list[Part]]:
    """The parts of each side, or of a model that has but one."""
    parts = list(summary.root.parts)
    sides = [[part for part in parts if part.name.split("_")[0] in words] for words in SIDES]
    columns = [parts]
    if all(any(_levels(part) > 1 for part in side) for side in sides):
        columns = [sides[0], [part for part in parts if part not in sides[0]]]
    for part in parts:  # a matrix may be both sides' embedding, and the output layer
        if (
            len(columns) > 1
            and part.name == "target_embedding"
            and part.begins < sides[0][0].begins
        ):
            columns[0].insert(0, dataclasses.replace(part, name=f"{part.name}, shared"))
        if part.name == summary.last and part.name.endswith("embedding"):
            columns[-1].append(dataclasses.replace(part, name=f"output: {part.name} again"))
    return columns


def _shown(part: Part) -> Part:
    """A list of layers that are alike as one of them; the name says how many there are."""
    if part.kind == "List" and len(part.parts) == 1:
        (only,) = part.parts
        return dataclasses.replace(only, name=f"{part.name}: {only.copies} x {only.kind}")
    name = f"{part.copies} x {part.kind}" if part.name.isdigit() else part.name
    return dataclasses.replace(part, name=name)


def _levels(part: Part) -> int:
    """How many modules are in each other; 0 for a parameter."""
    return 0 if part.shape is not None else 1 + max(map(_levels, part.parts))


def _height(part: Part) -> float:
    part = _shown(part)
    if _levels(part) < FRAMED:
        return HEIGHT + GAP
    return HEIGHT + sum(map(_height, part.parts)) + GAP


def _draw(axes: Any, part: Part, x: float, y: float, width: float) -> Iterator[tuple[float, float]]:
    """Draws a part, and yields the places of boxes that attend to the source."""
    name, part = part.name, _shown(part)
    height, is_frame = _height(part) - GAP, _levels(part) >= FRAMED
    colour = next((x for word, x in COLOURS.items() if word in name), OTHER)
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        linewidth=0.8,
        facecolor=FRAME if is_frame else colour,
        edgecolor="0.35",
    )
    axes.add_patch(shape)
    if name in TO_SOURCE:
        yield x, y + height / 2
    matrices = collections.Counter(x for x in _shapes(part) if len(x) > 1 and not is_frame)
    sizes = [f"{n} of {size(x)}" if n > 1 else size(x) for x, n in matrices.items()]
    numbers = f"{part.parameters:,} parameters{' each' if part.copies > 1 else ''}"
    middle, below = x + width / 2, y + height - HEIGHT
    for text, at, points in ((part.name, 0.31, 8), (", ".join([*sizes[:3], numbers]), 0.13, 6.5)):
        axes.text(middle, below + at, text, ha="center", va="center", fontsize=points)
    for inner in part.parts if is_frame else ():
        yield from _draw(axes, inner, x + GAP, y + GAP, width - 2 * GAP)
        y += _height(inner)


def _shapes(part: Part) -> Iterator[tuple[int, ...]]:
    if part.shape is not None:
        yield part.shape
    for inner in part.parts:
        yield from _shapes(inner)


def _arrow(axes: Any, way: list[tuple[float, float]]) -> None:
    axes.plot(*zip(*way[:-1], strict=True), color="0.35", linewidth=0.9)
    style = {"arrowstyle": "-|>", "color": "0.35", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", way[-1], way[-2], arrowprops=style)
