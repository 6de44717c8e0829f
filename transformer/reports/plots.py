"""Pictures of a run."""

import io
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from transformer.runs.metrics import read_metrics
from transformer.system.errors import UserError
from transformer.system.files import write_atomically


def learning_curve(metrics_path: str | Path, out_path: str | Path, directions=None) -> None:
    """Draws the learning curve of a metrics.jsonl into a PNG file.

    One panel has the training loss and each split's validation loss (`eval/<split>/nll`),
    the other each split's BLEU, as far as they are there. The title is the name of the work
    directory. Works while the run is still writing. Raises UserError when the file has none
    of these metrics.
    """
    metrics_path, out_path = Path(metrics_path), Path(out_path)
    metrics = read_metrics(metrics_path)
    names = {name for line in metrics for name, value in line.items() if value is not None}
    loss_splits, bleu_splits = _splits(names, "nll"), _splits(names, "bleu")
    has_loss = bool(loss_splits) or "train/loss" in names
    count = has_loss + bool(bleu_splits)
    if count == 0:
        raise UserError(
            f"{metrics_path} has nothing to draw: expected numbers for train/loss, "
            "eval/<split>/nll or eval/<split>/bleu, found "
            f"{', '.join(sorted(names - {'step'})) or 'none at all'}"
        )

    # Figure and canvas by hand: pyplot keeps global state and may look for a display.
    figure = Figure(figsize=(8, 1 + 3.2 * count), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    colors = {s: f"C{i}" for i, s in enumerate(sorted({*loss_splits, *bleu_splits}))}
    if has_loss:
        panels[0].set_ylabel("loss (nats per token)")
        if "train/loss" in names:
            steps, values = _curve(metrics, "train/loss")
            style = {"color": "0.6", "linewidth": 1, "marker": ".", "markersize": 2}
            panels[0].plot(steps, values, label="training, as minimised", **style)
        for split in loss_splits:
            _draw_split(panels[0], metrics, split, "nll", min, colors[split])
    if bleu_splits:
        panels[-1].set_ylabel("BLEU (0 to 100)")
        for split in bleu_splits:
            _draw_split(panels[-1], metrics, split, "bleu", max, colors[split])

    for axes in panels:
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    panels[-1].set_xlabel("step (updates)")
    panels[-1].xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    panels[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    # A directory may have dollar signs in its name: no mathematics.
    figure.suptitle(metrics_path.resolve().parent.name, parse_math=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomically(out_path, picture.getvalue())


def _draw_split(
    axes: Axes,
    metrics: list[dict[str, Any]],
    split: str,
    metric: str,
    best: Callable[[Iterable], Any],
    color: str,
) -> None:
    steps, values = _curve(metrics, f"eval/{split}/{metric}")
    value, step = best((v, s) for s, v in zip(steps, values) if not math.isnan(v))
    label = f"{split} (best {value:.2f} at step {step:,})"
    axes.plot(steps, values, color=color, marker="o", markersize=3, label=label)


def _curve(metrics: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric; NaN, a gap in the line, where it was not finite."""
    points = [(line["step"], line[name]) for line in metrics if name in line]
    return [s for s, _ in points], [math.nan if v is None else v for _, v in points]


def _splits(names: set[str], metric: str) -> list[str]:
    prefix, suffix = "eval/", f"/{metric}"
    return sorted(
        name.removeprefix(prefix).removesuffix(suffix)
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    )
