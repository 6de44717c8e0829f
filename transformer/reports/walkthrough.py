"""A walk through a Transformer with the numbers of a sentence, as lectures draw it by hand.

Below the steps, three arguments of lectures are measured.
"""

from typing import Any

import numpy as np

from transformer.models.attention import dot_product_attention
from transformer.models.layers import Embedding
from transformer.models.numerics import standardize
from transformer.reports.figures import positions_of
from transformer.reports.pages import panels, svg
from transformer.reports.walkthrough_numbers import Pass, follow, update
from transformer.reports.walkthrough_page import Line, Step, walkthrough_page
from transformer.reports.walkthrough_steps import steps, update_step
from transformer.runs.restore import TrainedModel

SIZES_OF_KEYS = (1, 4, 16, 64, 256, 1024)
LARGEST, SLOPES = "mean of the largest weight", "norm of the derivatives"


def saturation(
    sizes: tuple[int, ...] = SIZES_OF_KEYS, num_keys: int = 16, num_queries: int = 64
) -> dict[str, dict[str, list[float]]]:
    """LARGEST and SLOPES of a softmax by key size, with and without the factor 1 / sqrt(d_k).

    Means over random queries; components of queries and keys have mean 0 and variance 1.
    """
    found: dict[str, dict[str, list[float]]] = {
        name: {"scaled": [], "not scaled": []} for name in (LARGEST, SLOPES)
    }
    for size in sizes:
        rng = np.random.default_rng(0)
        query_TK, key_SK = (rng.normal(size=(n, size)) for n in (num_queries, num_keys))
        products_TS = query_TK @ key_SK.T
        for name, factor in (("scaled", size**-0.5), ("not scaled", 1.0)):
            weights_TS = np.exp(factor * (products_TS - products_TS.max(axis=1, keepdims=True)))
            weights_TS /= weights_TS.sum(axis=1, keepdims=True)
            slopes_TSS = weights_TS[:, :, None] * (np.eye(num_keys) - weights_TS[:, None])
            found[LARGEST][name].append(float(weights_TS.max(axis=1).mean()))
            found[SLOPES][name].append(float(np.linalg.norm(slopes_TSS, axis=(1, 2)).mean()))
    return found


def scaling_step() -> Step:
    found = saturation()
    figure, places = panels(len(found))
    for axes, (title, curves) in zip(places, found.items(), strict=True):
        for name, values in curves.items():
            axes.plot(SIZES_OF_KEYS, values, marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("d_k", fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.grid(color="0.9")
        axes.legend(frameon=False, fontsize=8)
    scaled, not_scaled = (values[-1] for values in found[SLOPES].values())
    return Step(
        "Why divide by √d_k?",
        "Q Kᵀ / √d_k  (Section 3.2.1)",
        "The product of two random vectors has a variance of d_k. Without the factor the softmax "
        "of large products gives nearly all to one key, and its derivatives shrink: at d_k = "
        f"{SIZES_OF_KEYS[-1]:,} their norm is {not_scaled:.3f}, with the factor {scaled:.3f}. "
        "Random queries and 16 random keys.",
        [Line(dot_product_attention, "query_BHTK = query_BHTK *")],
        [svg(figure)],
    )


def positions_step(model: TrainedModel, one: Pass) -> Step:
    bound = model.task.model.bind(model.params, model.extra)
    table_VD = np.asarray(bound.target_embedding.table_VD[...]) * bound.target_embedding.scale
    positions_TD = one.x_TD - one.embedded_TD
    if model.config.model.positions == "sinusoidal":
        positions_TD = positions_of(model, len(one.tgt_in))
    V, T = len(table_VD), len(one.tgt_in)
    one_hot_TX = np.eye(T, V + T, V, np.float32)
    one_hot_TX[np.arange(T), one.tgt_in] = 1
    apart = np.abs(one_hot_TX @ np.concatenate([table_VD, positions_TD]) - one.x_TD).max()
    return Step(
        "Why may positions be added?",
        "[one-hot token, one-hot position] · [W_I; W_P] = W_I[token] + W_P[position]",
        "To append a one-hot position to the one-hot token, and to multiply by one matrix, is the "
        f"same as to add. Done here with {V:,} + {T} columns: the largest difference to the "
        f"model's own x is {apart:.1e}.",
        [Line(Embedding.embed, "x_BTD = self.table_VD")],
        [],
    )


def change_beside(x_XD: Any, other_XD: Any, epsilon: float, axis: int) -> float:
    """The change of x, normalised along the axis, if it shares a batch with other vectors."""

    def normed(x_XD: Any) -> Any:
        apart_XD = x_XD - x_XD.mean(axis=axis, keepdims=True)
        return apart_XD / np.sqrt((apart_XD**2).mean(axis=axis, keepdims=True) + epsilon)

    both_XD = normed(np.concatenate([x_XD, other_XD]))
    return float(np.abs(both_XD[: len(x_XD)] - normed(x_XD)).max())


def norm_step(model: TrainedModel, one: Pass) -> Step:
    x_TD = one.layer_input_TD + one.attended_TD
    others = x_TD[::-1] * 2 + 1, model.config.model.norm_epsilon
    of_batch, of_vectors = (change_beside(x_TD, *others, axis) for axis in (0, 1))
    return Step(
        "Why layer normalisation and not batch normalisation?",
        "",
        "Layer normalisation looks at one vector alone. Batch normalisation takes mean and "
        "variance of each dimension over all vectors of a batch, so that a sentence depends on "
        "those beside it. Here the vectors of step 11 before normalisation, alone and beside a "
        "second sentence "
        f"(the same vectors backwards, times 2, plus 1): layer normalisation moves by "
        f"{of_vectors:.1e}, batch normalisation by up to {of_batch:.2f}.",
        [Line(standardize, "return _standardize_forward")],
        [],
    )


def page(model: TrainedModel, source: str, target: str | None, layer: int, head: int) -> str:
    if target is None:
        (target,) = model.task.translate(model.params, model.extra, [source])
    one = follow(model, source, target, layer, head)
    walk = [*steps(model, one, layer, head), update_step(update(model, one))]
    measured = [scaling_step(), positions_step(model, one), norm_step(model, one)]
    intro = (
        f"The model of {model.workdir.resolve().name} reads “{source}” and writes “{target}”. All "
        "numbers are those of its own forward pass. Blue is positive, orange negative; of large "
        "matrices a corner is shown."
    )
    return walkthrough_page(
        "A walk through a Transformer", intro, {"Forward": walk, "Arguments, measured": measured}
    )
