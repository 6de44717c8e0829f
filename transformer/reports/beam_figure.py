"""A picture of a beam search: every continuation that it weighed, step by step."""

import itertools
from collections.abc import Callable

from matplotlib.lines import Line2D

from transformer.data.vocabulary import EOS
from transformer.decoding.inputs import Request
from transformer.inference.attention_maps import token_text
from transformer.inference.beam_tree import Tree, TreeSearch
from transformer.reports.pages import Picture, plain
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

MOST_STEPS = 24  # more would not be readable
COLOURS = {"output": "C0", "finished": "C2", "kept": "0.25", "dropped": "0.7"}


def beam_figure(model: TrainedModel, source: str) -> Picture:
    """The search for a translation of a source, or for a language model's continuation of it."""
    task = model.task
    if not hasattr(task, "translator"):
        raise UserError(f"the task {model.config.task.name} has no beam search")
    (sentence,) = task.translator.encode(task.searched([Request(source)]), None)
    tree = TreeSearch(task.translator)(
        (model.params, model.extra), sentence, task.translator.config
    )
    tokenizer = task.tokenizers.target
    return draw_tree(tree, lambda id_: "EOS" if id_ == EOS else token_text(tokenizer, id_))


def draw_tree(tree: Tree, text: Callable[[int], str]) -> Picture:
    """Draws the nodes of each step below each other, the most probable of a parent first.

    text: of a token.
    """
    steps, heights = [0], [0.0]
    for node in tree.nodes[1:]:  # parents come first
        steps.append(steps[node.parent] + 1)
        heights.append(0.0)
    by_step = itertools.groupby(
        sorted(range(1, len(steps)), key=lambda i: steps[i]), steps.__getitem__
    )
    most = 1
    for _, members in by_step:
        nodes = tree.nodes
        ranked = sorted(members, key=lambda i: (-heights[nodes[i].parent], -nodes[i].log_prob))
        most = max(most, len(ranked))
        for rank, i in enumerate(ranked):
            heights[i] = (len(ranked) - 1) / 2 - rank
    texts = ["BOS", *(text(node.token) for node in tree.nodes[1:])]
    last = min(max(steps), MOST_STEPS)
    figure = Picture(0.95 * last + 1.2, 0.26 * most + 0.9, texts)
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.4, last + 0.5), ylim=(-most / 2, most / 2))
    output = {0, *tree.paths[0]}
    for i, node in enumerate(tree.nodes):
        if steps[i] > last:
            continue
        state = "output" if i in output else node.state
        colour = COLOURS[state]
        if i:
            xs, ys = (steps[node.parent], steps[i]), (heights[node.parent], heights[i])
            look = {"linewidth": 1.6, "zorder": 2} if i in output else {"linewidth": 0.7}
            axes.plot(xs, ys, color=colour, **look)
        shown = plain(texts[i]) + (f" {node.probability:.2f}" if i else "")
        look = {"ha": "center", "va": "center", "fontsize": 7, "color": colour, "zorder": 3}
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(steps[i], heights[i], shown, **look)
    lines = [Line2D([], [], color=x, label=state) for state, x in COLOURS.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
