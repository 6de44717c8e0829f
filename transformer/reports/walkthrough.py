"""A walk through a Transformer with the numbers of a sentence, as lectures draw it by hand."""

import numpy as np

from transformer.models.attention import dot_product_attention
from transformer.models.layers import Embedding
from transformer.models.numerics import standardize
from transformer.reports import arguments
from transformer.reports.figures import positions_of
from transformer.reports.pages import panels, svg
from transformer.reports.walkthrough_numbers import Pass, follow, update
from transformer.reports.walkthrough_page import Line, Step, walkthrough_page
from transformer.reports.walkthrough_steps import steps, update_step
from transformer.runs.restore import TrainedModel


def scaling_step() -> Step:
    found = arguments.saturation()
    titles = {
        "mean of the largest weight": found.largest,
        "norm of the derivatives": found.gradient,
    }
    figure, places = panels(len(titles))
    for axes, (title, curves) in zip(places, titles.items(), strict=True):
        for name, values in curves.items():
            axes.plot(arguments.SIZES_OF_KEYS, values, marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("d_k", fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.grid(color="0.9")
        axes.legend(frameon=False, fontsize=8)
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


def page(model: TrainedModel, source: str, target: str | None, layer: int, head: int) -> str:
    if target is None:
        (target,) = model.task.translate(model.params, model.extra, [source])
    one = follow(model, source, target, layer, head)
    walk = [*steps(model, one, layer, head), update_step(update(model, one))]
    measured = [
        scaling_step(),
        positions_step(model, one),
        norm_step(model, one),
    ]
    intro = (
        f"The model of {model.workdir.resolve().name} reads “{source}” and writes “{target}”. All "
        "numbers are those of its own forward pass. Blue is positive, orange negative; of large "
        "matrices a corner is shown."
    )
    return walkthrough_page(
        "A walk through a Transformer", intro, {"Forward": walk, "Arguments, measured": measured}
    )
