"""Plots of metrics against the step."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from transformer.reports.pages import Picture
from transformer.runs.metric_writers import read_metrics
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

Curve = Sequence[tuple[int, float | None]]  # steps and values; None where not finite

_TRAINING = "train/nll"  # without label smoothing, like validation
_LARGEST = 1e300  # beyond this, Matplotlib's arithmetic overflows
_LABELS = {"nll": "nats per token", "bleu": "BLEU"}


def style(number: int, count: int) -> dict[str, Any]:
    """The style of a run's curve, the same in all panels. number: the run's; count: of its points.

    A single point, which makes no line, is drawn large.
    """
    marker = {"marker": "o", "markersize": 5 if count == 1 else 2} if count < 200 else {}
    line = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}
    return line | marker


def label(metric: str) -> str:
    """The readable name of a metric."""
    return _LABELS.get(metric, metric)


def learning_curve(metrics_path: Path, out_path: Path, better: Mapping[str, str]) -> None:
    """Draws `learning_figure` into a PNG file."""
    write_atomically(out_path, learning_figure(metrics_path, better).drawn("png", dpi=130))


def learning_figure(metrics_path: Path, better: Mapping[str, str]) -> Picture:
    """The learning curves of a metrics.jsonl.

    One panel has the training `nll`, which includes dropout, and that of each evaluated split. Each
    other metric of these splits has a panel of its own. The title is the name of the work
    directory. Works while the run is still writing. better: the better direction of each metric,
    "lower" or "higher". Raises UserError when the file has none of these metrics.
    """
    curves: dict[str, list[tuple[int, float | None]]] = {_TRAINING: []}
    for line in read_metrics(metrics_path):
        for name, value in line.items():
            if name == _TRAINING or name.startswith("eval/"):
                curves.setdefault(name, []).append((line["step"], value))
    panels: dict[str, dict[str, Curve]] = {label("nll"): {}}
    for name, curve in curves.items():
        finite = [(value, step) for step, value in curve if value is not None]
        if not finite:
            continue
        if name == _TRAINING:
            panels[label("nll")]["training, with dropout"] = curve
            continue
        split, _, metric = name.removeprefix("eval/").rpartition("/")
        lower = better[metric] == "lower"
        best, step = min(finite, key=lambda point: (point[0] if lower else -point[0], point[1]))
        panel = panels.setdefault(label(metric), {})
        panel[f"{split} (best {best:.2f} at step {step:,})"] = curve
    panels = {name: panel for name, panel in panels.items() if panel}
    if not panels:
        raise UserError(
            f"{metrics_path} has nothing to draw: expected numbers for {_TRAINING} or for a metric "
            "of a validation, such as eval/validation/nll"
        )
    return curves_figure(Path(metrics_path).resolve().parent.name, panels)


def curves_figure(title: str, panels: Mapping[str, Mapping[str, Curve]]) -> Picture:
    """A panel for each vertical-axis label; the curves have labels, too."""
    figure = Picture(8, 1 + 3.2 * len(panels))
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    # A label common to several panels is the same up to its best value.
    known = [name.partition(" (best ")[0] for curves in panels.values() for name in curves]
    numbers = [name for name in dict.fromkeys(known) if not name.startswith("training")]
    for axes, (unit, curves) in zip(all_axes, panels.items(), strict=True):
        for name, curve in curves.items():
            values = [y if y is not None and abs(y) < _LARGEST else math.nan for _, y in curve]
            own = name.partition(" (best ")[0]
            look = style(numbers.index(own) if own in numbers else 0, len(values))
            look |= {} if own in numbers else {"color": "0.6"}
            steps = [step for step, _ in curve]
            axes.plot(steps, values, label=name, linewidth=1, **look)
        axes.set_ylabel(unit)
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        if curves:
            axes.legend(frameon=False)
    all_axes[-1].set_xlabel("step (updates)")
    all_axes[-1].xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    all_axes[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figure.suptitle(title, parse_math=False)  # a directory name may contain dollar signs
    return figure
