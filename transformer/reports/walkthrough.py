"""A walk through a Transformer with the numbers of a sentence, as lectures draw it by hand.

    python -m transformer.reports.walkthrough --workdir=runs/demo --source="the old man sleeps ."
    python -m transformer.reports.walkthrough --toy

The page (walkthrough.html) is one file without scripts. It shows tokens, embeddings, positions, a
head of decoder self-attention, add & norm, attention to the source, feed-forward network, logits,
loss, and a gradient step; each with the paper's equation and the lines of code that compute it.
Below are measurements of the lecture's arguments. Without --target it follows the model's own
translation. --toy needs no model: it uses numbers that one can check by hand.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from transformer.models.attention import dot_product_attention, in_blocks
from transformer.models.layers import Embedding
from transformer.models.numerics import standardize
from transformer.reports import arguments
from transformer.reports.figures import positions_of
from transformer.reports.pages import Html, panels, svg, table
from transformer.reports.toy_numbers import toy_steps
from transformer.reports.walkthrough_numbers import Pass, follow, update
from transformer.reports.walkthrough_page import Line, Step, walkthrough_page
from transformer.reports.walkthrough_steps import steps, update_step
from transformer.runs import cli
from transformer.runs.restore import TrainedModel, define_flags
from transformer.system.errors import UserError
from transformer.system.files import check_can_write, write_named
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
SOURCE = flags.DEFINE_string("source", None, "The source sentence.")
TARGET = flags.DEFINE_string("target", None, "A translation (default: the model's own).")
LAYER = flags.DEFINE_integer("layer", 1, "The decoder layer that is followed, from 1.")
HEAD = flags.DEFINE_integer("head", 1, "Its head, from 1.")
TOY = flags.DEFINE_boolean("toy", False, "Small numbers in place of a model and a sentence.")
OUT = DEFINE_path(
    "out", None, "The page to write (default: walkthrough.html; of --toy, walkthrough_toy.html)."
)


def _curves(
    x: Sequence[int], by_title: Mapping[str, Mapping[str, Sequence[float]]], across: str
) -> tuple[Figure, list[Any]]:
    figure, places = panels(len(by_title))
    for axes, (title, curves) in zip(places, by_title.items(), strict=True):
        for name, values in curves.items():
            axes.plot(x, values, marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(across, fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.grid(color="0.9")
        axes.legend(frameon=False, fontsize=8)
    return figure, places


def scaling_step() -> Step:
    found = arguments.saturation()
    titles = {
        "mean of the largest weight": found.largest,
        "norm of the derivatives": found.gradient,
    }
    figure, _ = _curves(arguments.SIZES_OF_KEYS, titles, "d_k")
    gradient = {name: values[-1] for name, values in found.gradient.items()}
    return Step(
        "Why divide by √d_k?",
        "Q Kᵀ / √d_k  (Section 3.2.1)",
        "The product of two random vectors has a variance of d_k. Without the factor the softmax "
        "of large products gives nearly all to one key, and its derivatives shrink: at d_k = "
        f"{arguments.SIZES_OF_KEYS[-1]:,} their norm is {gradient['not scaled']:.3f}, with the "
        f"factor {gradient['scaled']:.3f}. Random queries and 16 random keys.",
        [Line(dot_product_attention, "query_BHTK = query_BHTK *")],
        [svg(figure)],
    )


def positions_step(model: TrainedModel, one: Pass) -> Step:
    bound = model.task.model.bind(model.params, model.extra)
    table_VD = np.asarray(bound.target_embedding.table_VD[...]) * bound.target_embedding.scale
    positions_TD = one.x_TD - one.embedded_TD
    if model.config.model.positions == "sinusoidal":
        positions_TD = positions_of(model, len(one.tgt_in))
    apart = arguments.one_hot_positions(one.x_TD, table_VD, positions_TD, one.tgt_in)
    V, P = len(table_VD), len(positions_TD)
    return Step(
        "Why may positions be added?",
        "[one-hot token, one-hot position] · [W_I; W_P] = W_I[token] + W_P[position]",
        "To append a one-hot position to the one-hot token, and to multiply by one matrix, is the "
        f"same as to add. Done here with {V:,} + {P} columns: the largest difference to the "
        f"model's own x is {apart:.1e}.",
        [Line(Embedding.embed, "x_BTD = self.table_VD")],
        [],
    )


def reach_step() -> Step:
    rows, waits = [], []
    for name, found in arguments.reach().items():
        for depth, seen in enumerate(found.seen, 1):
            rows.append([name, str(depth), "".join("■" if x else "·" for x in seen), sum(seen)])
        waits.append([name, *found.waits.values()])
        lengths = list(found.waits)
    return Step(
        "What can one output see, and what must wait?",
        "Table 1: maximum path length, sequential operations",
        "Which inputs change the output in the middle, after one, two and three layers: a "
        "convolution of width 3 sees two more with each layer, an RNN all before it, attention "
        "everything at once. And how many matrix products must wait for each other in three "
        "layers: those of an RNN grow with the length. An RNN sees the first word through as many "
        "steps as there are words; attention in one. Measured by derivatives, and by the longest "
        "chain in the program.",
        [
            Line(arguments._seen, "slopes_SD = "),
            Line(arguments._depth, "own = times *"),
        ],
        [
            Html(table(["layers of", "depth", "inputs that the middle sees", "how many"], rows)),
            Html(table(["chain in three layers", *[f"length {n}" for n in lengths]], waits)),
        ],
    )


def norm_step(model: TrainedModel, one: Pass) -> Step:
    x_BTD = (one.layer_input_TD + one.attended_TD)[None]
    other_BTD = x_BTD[:, ::-1] * 2 + 1
    moved = arguments.change_beside(x_BTD, other_BTD, model.config.model.norm_epsilon)
    return Step(
        "Why layer normalisation and not batch normalisation?",
        "",
        "Layer normalisation looks at one vector alone. Batch normalisation takes mean and "
        "variance of each dimension over all vectors of a batch, so that a sentence depends on "
        "those beside it. Here the vectors of step 11 before normalisation, alone and beside a "
        "second sentence "
        f"(the same vectors backwards, times 2, plus 1): layer normalisation moves by "
        f"{moved['layer']:.1e}, batch normalisation by up to {moved['batch']:.2f}.",
        [Line(standardize, "return _standardize_forward")],
        [],
    )


def memory_step() -> Step:
    found = arguments.memory_of_attention()
    curves = {name: [x / 2**20 for x in values] for name, values in found.items()}
    figure, places = _curves(arguments.LENGTHS, {"MiB, attention and gradient": curves}, "tokens")
    places[0].set_yscale("log", base=2)
    last = {name: values[-1] for name, values in curves.items()}
    return Step(
        "What does length cost?",
        "O(n² · d)  (Table 1)",
        "All scores at once need memory that grows with the square of the length: "
        f"{last['all scores at once']:,.0f} MiB for {arguments.LENGTHS[-1]:,} tokens, 8 heads, "
        f"one layer. In blocks of queries it is {last['in blocks of queries']:,.0f} MiB; the time "
        "still grows with the square. What XLA plans for this machine.",
        [Line(in_blocks, "jax.lax.map(")],
        [svg(figure)],
    )


def _page(model: TrainedModel, source: str, target: str | None, layer: int, head: int) -> str:
    if target is None:
        (target,) = model.task.translate(model.params, model.extra, [source])
    one = follow(model, source, target, layer, head)
    walk = [*steps(model, one, layer, head), update_step(update(model, one))]
    measured = [
        scaling_step(),
        positions_step(model, one),
        reach_step(),
        norm_step(model, one),
        memory_step(),
    ]
    intro = (
        f"The model of {model.workdir.resolve().name} reads “{source}” and writes “{target}”. All "
        "numbers are those of its own forward pass. Blue is positive, orange negative; of large "
        "matrices a corner is shown."
    )
    return walkthrough_page(
        "A walk through a Transformer", intro, {"Forward": walk, "Arguments, measured": measured}
    )


def main() -> None:
    usual = "walkthrough_toy.html" if TOY.value else "walkthrough.html"
    path = Path(OUT.value or usual).expanduser()
    check_can_write(path, ".html")
    if TOY.value:
        intro = "Numbers that one can check by hand, computed by the functions of the model."
        page = walkthrough_page("A walk with small numbers", intro, {"Step by step": toy_steps()})
    else:
        if not (SOURCE.value or "").strip():
            raise UserError("no sentence is given; add --source='...', or --toy")
        model = restore_model()
        if model.others or not hasattr(model.task, "translator"):
            raise UserError("give the work directory of one translation model")
        page = _page(model, SOURCE.value, TARGET.value, LAYER.value, HEAD.value)
    write_named(path, page)
    print(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
