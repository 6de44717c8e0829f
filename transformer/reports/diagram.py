"""A diagram of a model, drawn from its modules as Figure 1 of the paper is: inputs below."""

from typing import Any

from matplotlib.patches import FancyBboxPatch

from transformer.reports.model_summary import Part, Summary
from transformer.reports.pages import Picture

WIDTH, HEIGHT, GAP = 4.2, 0.52, 0.16  # of a box, in inches; and the space around it
# The colour of a box, by a part of its name or kind; as in the paper.
COLOURS = {
    "norm": "#f3f6c1",
    "attention": "#fde0bb",
    "alignment": "#fde0bb",
    "embedding": "#fce1e0",
    "positions": "#fce1e0",
    "token_types": "#fce1e0",
    "output": "#dde0ee",
    "logits": "#dde0ee",
}
OTHER = "#c9e8f5"
SIDES = ({"encoder", "source", "generator"}, {"decoder", "target", "discriminator"})
TO_SOURCE = ("cross_attention", "attentions", "alignment")


def diagram(summary: Summary) -> Picture:
    """Boxes of modules, with sizes of their matrices and numbers of parameters.

    A frame is drawn around modules that contain layers; "6 x" says that six such stand on each
    other. A model of two sides has its source on the left.
    """
    root = summary.root
    sides = [[part for part in root.parts if _is_of(part, words)] for words in SIDES]
    rest = [part for part in root.parts if not any(part in side for side in sides)]
    columns = [sides[0], sides[1] + rest] if all(map(_has_layers, sides)) else [list(root.parts)]
    if len(columns) > 1 and not any("source" in x.name for x in columns[0]):
        shared = [x for x in columns[1] if x.name == "target_embedding"]
        columns[0] = shared + columns[0]
    last = summary.last.split(".")[0]
    if last and columns[-1][-1].name != last and (tied := _named(root, last)).shape is None:
        if "embedding" in last:  # its matrix is used twice
            name = f"output layer: the matrix of {last}"
            columns[-1].append(Part(name, flops=tied.flops, shape=()))
    tall = max(sum(map(_height, column)) for column in columns)
    wide = len(columns) * (WIDTH + 6 * GAP)
    texts = f"{root.name}: {root.parameters:,} parameters", (
        f"{root.flops / 1e6:,.4g} million FLOPs to read {summary.inputs}"
    )
    figure = Picture(wide, tall + 0.9, texts)
    axes = figure.subplots()
    axes.set(xlim=(0, wide), ylim=(-0.1, tall + 0.1), title="\n".join(texts))
    axes.axis("off")
    tops = [_draw_column(axes, column, i * (WIDTH + 6 * GAP) + 3 * GAP) for i, column in enumerate(columns)]
    if len(columns) > 1:
        _link(axes, tops)
    return figure
