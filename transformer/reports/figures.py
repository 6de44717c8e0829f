"""Figures of a trained model for papers and notebooks: attention, layers, words, positions, ...

Each function returns a figure. A notebook shows it; `figure.drawn("svg")` returns it as a file.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.ticker import MaxNLocator

from transformer.inference.attention_maps import (
    Attention,
    Token,
    attention_of,
    by_words,
    merge_words,
)
from transformer.inference.logit_lens import logit_lens
from transformer.inference.model import Model
from transformer.inference.word_vectors import frequent_words, principal_components, word_vectors
from transformer.models.attention import Mask
from transformer.reports.pages import Picture, plain
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.training.schedules import make_schedule

PADDING = 3  # in tokens, in the picture of masks
# The lecture's curves of Equation 3.
EQUATION_3 = ((512, 4000), (512, 8000), (256, 4000))


def attention_figure(
    model: Model | TrainedModel,
    source: str,
    target: str | None = None,
    *,
    attention: str | None = None,
    layer: int | None = None,
    heads: list[int] | None = None,
    words: bool = False,
) -> Picture:
    """The heads of a layer as matrices, queries down and keys across.

    model: from `transformer.load`, or from runs/restore.py, which also loads BERT.
    attention: "encoder", "decoder" or "cross"; default: the last of these that the model has.
    layer, heads: from 1; default: the last layer, and all heads.
    Raises UserError if the model does not have them.
    """
    found = attention_of(_restored(model), source, target)
    return draw_attention(found, attention, layer, heads, words)


def draw_attention(
    found: Attention, name: str | None, layer: int | None, heads: list[int] | None, words: bool
) -> Picture:
    """Draws `attention_figure` from computed weights."""
    name = name or list(found.maps)[-1]
    if name not in found.maps:
        raise UserError(f"the model has no attention {name!r}; it has: {', '.join(found.maps)}")
    weights_LHQK = found.maps[name]
    L, H = weights_LHQK.shape[:2]
    layer = L if layer is None else layer
    heads = list(range(1, H + 1)) if heads is None else heads
    if not 1 <= layer <= L:
        raise UserError(f"layer {layer} is asked for; the model has 1 to {L}")
    for head in heads:
        if not 1 <= head <= H:
            raise UserError(f"head {head} is asked for; the model has 1 to {H}")
    queries, keys = found.tokens(name)
    weights_hQK = weights_LHQK[layer - 1, [head - 1 for head in heads]]
    names = [[token.text for token in tokens] for tokens in (queries, keys)]
    if words:
        names, members = zip(*map(by_words, (queries, keys)), strict=True)
        weights_hQK = merge_words(weights_hQK, *members)
    columns = min(4, len(heads))
    rows = -(-len(heads) // columns)
    across, down = (max(1.6, 0.24 * len(side)) for side in (names[1], names[0]))
    figure = Picture(columns * across + 1.2, rows * (down + 0.9) + 0.3, [*names[0], *names[1]])
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(heads) :]:
        panel.axis("off")
    for i, (panel, head) in enumerate(zip(panels, heads)):
        panel.imshow(weights_hQK[i], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        _label(panel, names[0] if i % columns == 0 else None, names[1])
        title = f"{found.layer} {layer}, head {head}" if H > 1 else f"{found.layer} {layer}"
        panel.set_title(title, fontsize=9)
    return figure


def positions_figure(model: Model | TrainedModel, length: int = 64) -> Picture | None:
    """The vectors added to the embeddings for each position; None if the model adds nothing."""
    table_TD = positions_of(_restored(model), length)
    if table_TD is None:
        return None
    figure = Picture(11, 3.6)
    first, second, third = figure.subplots(1, 3)
    most = np.abs(table_TD).max()
    first.imshow(table_TD, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    first.set_title("the vector of each position", fontsize=9)
    first.set_xlabel("dimension")
    first.set_ylabel("position")
    for dimension in sorted({0, 4, 8, 16} & set(range(table_TD.shape[1]))):
        second.plot(table_TD[:, dimension], label=f"dimension {dimension}", linewidth=1)
    second.legend(fontsize=7, loc="upper right")
    second.set_title("some dimensions", fontsize=9)
    second.set_xlabel("position")
    products_TT = table_TD @ table_TD.T
    most = np.abs(products_TT).max()
    third.imshow(products_TT, cmap="RdBu", vmin=-most, vmax=most)
    third.set_title("products of the vectors of two positions", fontsize=9)
    third.set_xlabel("position")
    return figure


def positions_of(model: TrainedModel, length: int) -> np.ndarray | None:
    """The source's [positions, dimensions]; at most as many positions as a table has."""
    table_PD = model.task.model.bind(model.params, model.extra).position_table(length)
    return None if table_PD is None else np.asarray(table_PD)


def masks_figure(source: Sequence[Token], target: Sequence[Token]) -> Picture:
    """The positions that may attend to each other, in blue. Queries down, keys across.

    The batch's longest sentences have PADDING tokens more. target: empty for an encoder-only model.
    source: empty for a decoder-only model, which reads only its target.
    """
    sides = [[token.text for token in side] + ["PAD"] * PADDING for side in (source, target)]
    segments = [
        jnp.array([[1] * len(side) + [0] * PADDING], jnp.int32) for side in (source, target)
    ]
    src_BS, tgt_BT = segments
    panels: list[tuple[str, Mask, Any, Any]] = []
    if source:
        panels.append(("encoder: no padding", Mask(src_BS, src_BS), sides[0], sides[0]))
    if target:
        positions_T = jnp.arange(tgt_BT.shape[1])
        inputs = sides[1]
        if source:
            inputs = ["BOS", *sides[1][: len(target) - 1], *sides[1][len(target) :]]
        panels.append(("decoder: nothing later", Mask(tgt_BT, tgt_BT, positions_T), inputs, inputs))
    if source and target:
        panels.append(("decoder to source", Mask(tgt_BT, src_BS), sides[1], sides[0]))
    row = jnp.array([[1] * 5 + [2] * 4 + [0] * 2], jnp.int32)
    numbers = [str(segment) if segment else "PAD" for segment in row[0].tolist()]
    packed = Mask(row, row, jnp.arange(row.shape[1]))
    panels.append(("decoder, two sentences in a row", packed, numbers, numbers))
    texts = [text for side in sides for text in side]
    size = max(2.4, 0.2 * max(map(len, sides)) + 0.8)
    figure = Picture(size * len(panels), size + 0.6, texts)
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, mask, queries, keys) in zip(places, panels, strict=True):
        axes.imshow(mask.dense()[0], cmap="Blues", vmin=0, vmax=1.4)
        _label(axes, queries, keys, size=7)
        axes.set_title(title, fontsize=9)
    return figure


def schedule_figure(config: Config) -> Picture:
    """The learning rate of a run, and the lecture's curves of Equation 3."""
    figure = Picture(9, 3)
    own, lecture = figure.subplots(1, 2)
    steps = np.unique(np.linspace(1, config.training.steps, 500).astype(int))
    own.plot(steps, make_schedule(config.optimizer, config.model.width)(jnp.asarray(steps)))
    own.set_title(f"this run: {config.optimizer.schedule}", fontsize=9)
    unused = dict.fromkeys(("peak_learning_rate", "decay_steps", "cooldown_steps"))
    steps = np.arange(1, 20_000, 20)
    for d_model, warmup in EQUATION_3:
        changes = {"schedule": "noam", "warmup_steps": warmup, **unused}
        rates = make_schedule(dataclasses.replace(config.optimizer, **changes), d_model)
        lecture.plot(steps, rates(jnp.asarray(steps)), label=f"{d_model}: {warmup:,}")
    lecture.legend(title="d_model: warm-up", fontsize=7, frameon=False)
    lecture.set_title("Equation 3", fontsize=9)
    for axes in (own, lecture):
        axes.set_xlabel("update")
        axes.set_ylabel("learning rate")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def steps_figure(found: Attention) -> Picture:
    """The steps that a Universal Transformer takes to read and to write each token."""
    limits = (len(found.maps[name]) for name in ("encoder", "decoder"))
    sides = {"source": found.source, "target": found.target}
    texts = {side: [token.text for token in tokens] for side, tokens in sides.items()}
    width = max(5.0, 1 + 0.5 * max(map(len, texts.values())))
    figure = Picture(width, 5, [*texts["source"], *texts["target"]])
    for axes, side, limit in zip(figure.subplots(2), sides, limits, strict=True):
        axes.bar(range(len(texts[side])), found.steps[side], color="C0", width=0.7)
        _label(axes, None, texts[side], size=9)
        axes.set_ylim(0, limit)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(f"{side}: steps")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def embeddings_figure(model: Model | TrainedModel, words: Sequence[str] | None = None) -> Picture:
    """The embeddings of words, by their first two principal components.

    words: default: the most frequent ones of the validation split.
    """
    words = list(dict.fromkeys(words or frequent_words(_restored(model))))
    points_N2, shares = principal_components(word_vectors(_restored(model), words))
    figure = Picture(9, 7, words)
    axes = figure.subplots()
    axes.plot(*points_N2.T, ".", color="C0")
    for word, point in zip(words, points_N2, strict=True):
        axes.annotate(plain(word), point, (3, 2), textcoords="offset points", fontsize=9)
    for number, (side, share) in enumerate(zip((axes.xaxis, axes.yaxis), shares, strict=True), 1):
        side.set_label_text(f"principal component {number}: {share:.0%} of the variance")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def logit_lens_figure(
    model: Model | TrainedModel, source: str, target: str | None = None
) -> Picture:
    """The token that each layer would predict at each position; the darker, the more probable.

    model: a Transformer, a decoder-only model, or BERT. The lowest row is the embedding. Below are
    the tokens that are read, above those to predict. target: default: the model's own translation.
    """
    found = logit_lens(_restored(model), source, target)
    L, T = found.tokens_LT.shape
    texts = [*found.inputs, *found.targets, *(text for row in found.texts for text in row)]
    wide = max(0.75, 0.11 * max(map(len, texts)))
    figure = Picture(wide * T + 1.3, 0.42 * L + 1.8, texts)
    axes = figure.subplots()
    axes.imshow(found.probabilities_LT, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
    for (layer, t), p in np.ndenumerate(found.probabilities_LT):
        place = {"ha": "center", "va": "center", "color": "white" if p > 0.6 else "black"}
        text = f"{plain(found.texts[layer][t])}\n{p:.2f}"
        axes.text(t, layer, text, fontsize=8, linespacing=1.1, **place)
    _label(axes, ["embedding", *(f"layer {i}" for i in range(1, L))], found.inputs)
    above = axes.secondary_xaxis("top")
    above.set_xticks(range(T), list(map(plain, found.targets)), fontsize=8, rotation=60, ha="left",
                     rotation_mode="anchor")  # fmt: skip
    axes.set_xlabel("read")
    above.set_xlabel("to predict")
    return figure


def _restored(model: Model | TrainedModel) -> TrainedModel:
    return model.restored if isinstance(model, Model) else model


def _label(axes: Any, down: Sequence[str] | None, across: Sequence[str], size: int = 8) -> None:
    """Names of rows and columns."""
    texts = list(map(plain, across))
    axes.set_xticks(
        range(len(texts)), texts, rotation=60, fontsize=size, ha="right", rotation_mode="anchor"
    )
    if down is None:
        axes.set_yticks([]) if axes.images else None
    else:
        axes.set_yticks(range(len(down)), list(map(plain, down)), fontsize=size)
