"""What report.py shows of runs: a table, and a page."""

import html
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from transformer.evaluation import scores
from transformer.reports.translations import Texts, bleu_by_length, groups, read
from transformer.runs import experiment, history
from transformer.runs.metrics import read_metrics
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.tasks.task import find_task

# Curves beside those of validation, and what they are called.
OTHER_CURVES = {
    "train/learning_rate": "learning rate",
    "train/grad_norm": "norm of the gradient",
    "train/tokens_per_second": "target tokens per second",
    "input/wait_ms": "waiting for a batch, ms",
}
EXAMPLES = 8
BOUNDS = (8, 12, 16, 20)
RESAMPLES = 1000
STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem;
  color: #1a1a1a; }
h2 { margin-top: 2rem; }
table { border-collapse: collapse; }
.wide { overflow-x: auto; }
td, th { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
.quiet { color: #5b5b5b; font-size: .9rem; }
"""


class Run(NamedTuple):
    """What is known of a run from its work directory; its parameters are not read."""

    workdir: Path
    config: experiment.Experiment
    metrics: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]  # scores.json of each evaluated split

    @property
    def name(self) -> str:
        return self.workdir.resolve().name

    def curve(self, metric: str) -> list[tuple[int, float]]:
        found = [(line["step"], line.get(metric)) for line in self.metrics]
        return [(step, value) for step, value in found if value is not None]

    def total(self, name: str) -> float:
        return history.total(self.metrics, name)


def run_of(workdir: Path) -> Run:
    """Raises UserError if there is no run."""
    config = experiment.load(workdir)
    path = workdir / "metrics.jsonl"
    found = sorted((workdir / "eval").glob("*/scores.json"))
    found = [path for path in found if not path.parent.is_symlink()]  # eval/latest
    try:
        by_split = {path.parent.name: json.loads(path.read_text()) for path in found}
    except ValueError as error:
        raise UserError(f"{workdir}/eval has a damaged scores.json; evaluate again") from error
    return Run(workdir, config, read_metrics(path) if path.exists() else [], by_split)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The config fields in which runs differ, each with its value in every run."""
    flats = [experiment.flat(run.config) for run in runs]
    names = sorted({name for flat in flats for name in flat})
    found = {name: [flat.get(name) for flat in flats] for name in names}
    return {name: values for name, values in found.items() if any(x != values[0] for x in values)}


def columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Settings that differ, best and last validation, tests, and cost: a value for each run.

    None where a run has no such value; a column without any is left out.
    """
    found = differences(runs) if len(runs) > 1 else {}
    for metric, better in _directions(runs).items():
        curves = [run.curve(f"eval/validation/{metric}") for run in runs]
        pick = min if better == "lower" else max
        best = [pick((v for _, v in c), default=None) for c in curves]
        found[f"best {metric}"] = best
        if metric == "nll":  # it may be large before anything is learned
            found["best perplexity"] = [x if x is None else math.exp(min(x, 100)) for x in best]
        found[f"last {metric}"] = [c[-1][1] if c else None for c in curves]
    for split in sorted({split for run in runs for split in run.scores}):
        for metric in [*_directions(runs), "chrf"]:
            scores = [run.scores.get(split, {}).get(metric) for run in runs]
            found[f"{split} {metric}"] = [x and x["score"] for x in scores]
    updates = [max((line["step"] for line in run.metrics), default=None) for run in runs]
    found["updates"] = updates
    found["million target tokens"] = [run.total("target_tokens") / 1e6 or None for run in runs]
    found["minutes"] = [run.total("seconds") / 60 or None for run in runs]
    speeds = [[v for _, v in run.curve("train/tokens_per_second")] for run in runs]
    found["tokens per second"] = [sorted(x)[len(x) // 2] if x else None for x in speeds]
    return {name: x for name, x in found.items() if any(value is not None for value in x)}


def table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: a run each, with its columns."""
    found = columns(runs)
    cells = [["" if value is None else shown(value) for value in x] for x in found.values()]
    rows = zip([run.name for run in runs], *cells, strict=True)
    return ["run", *found], [list(row) for row in rows]


def page(runs: Sequence[Run]) -> str:
    """The HTML of one run, or of several beside each other."""
    title = " and ".join(run.name for run in runs)
    body = [f"<h1>{_text(title)}</h1>", _table(*table(runs))]
    body.append("<h2>Curves</h2>" + _curves(runs))
    for split in sorted({split for run in runs for split in run.scores}):
        those = [run for run in runs if split in run.scores]
        body.append(f"<h2>Scores on {_text(split)}</h2>" + _scores(those, split))
        if any(not hasattr(run.config.data, "target_language") for run in those):
            continue  # no translations
        try:
            texts = [read(run.workdir, split) for run in those]
        except UserError:  # they were removed
            continue
        is_same = all(x.references == texts[0].references for x in texts)
        if texts[0].sources and is_same:
            body.append(_translations(those, texts))
    for run in runs:
        flat = sorted(experiment.flat(run.config).items())
        rows = [[name, shown(value)] for name, value in flat]
        body.append(
            f"<details><summary>The config of {_text(run.name)}</summary>"
            f"{_table(['field', 'value'], rows)}</details>"
        )
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    content = "\n".join(body)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}{view}</head><body>{content}</body></html>\n'
    )


def write(workdir: Path) -> None:
    """WORKDIR/report.html."""
    write_atomically(workdir / "report.html", page([run_of(workdir)]))


def _directions(runs: Sequence[Run]) -> dict[str, str]:
    kinds = [find_task(run.config.task.name).metrics for run in runs]
    return {name: metric.better for kind in kinds for name, metric in kind.items()}


def _curves(runs: Sequence[Run]) -> str:
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for run in runs:
        lead = f"{run.name}, " if len(runs) > 1 else ""
        # Like beside like: both without label smoothing, though training has dropout.
        training = run.curve("train/nll")
        panels.setdefault("nats per token", {})[f"{lead}training"] = training
        for metric in _directions(runs):
            name = "nats per token" if metric == "nll" else metric
            curve = run.curve(f"eval/validation/{metric}")
            panels.setdefault(name, {})[f"{lead}validation"] = curve
        for key, name in OTHER_CURVES.items():
            panels.setdefault(name, {})[run.name] = run.curve(key)
    panels = {name: {k: c for k, c in curves.items() if c} for name, curves in panels.items()}
    panels = {name: curves for name, curves in panels.items() if curves}
    if not panels:
        return "<p>There are no metrics yet.</p>"
    rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(11, 3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.axis("off")
    for axes, (name, curves) in zip(places, panels.items()):
        for label, curve in curves.items():
            steps, values = zip(*curve, strict=True)
            axes.plot(steps, values, linewidth=1.2, label=label.replace("$", r"\$"))
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("updates", fontsize=8)
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8)
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    return svg[svg.index("<svg") :]


def _scores(runs: Sequence[Run], split: str) -> str:
    rows = [
        [run.name, metric, f"{found['score']:.2f}", found.get("signature", found.get("definition"))]
        for run in runs
        for metric, found in run.scores[split].items()
        if isinstance(found, dict) and "score" in found
    ]
    return _table(["run", "metric", "score", "signature or definition"], rows)


def _translations(runs: Sequence[Run], texts: Sequence[Texts]) -> str:
    parts, (first, *others) = [], texts
    members = groups(first.sources, BOUNDS)
    rows = [["sentences", *[str(len(of_group)) for of_group in members.values()]]]
    for run, own in zip(runs, texts, strict=True):
        by_group = bleu_by_length(run.workdir, own, BOUNDS)
        rows.append([f"BLEU, {run.name}", *[f"{bleu:.1f}" for bleu in by_group.values()]])
    parts.append("<h3>By the words of the source</h3>" + _table(["words", *members], rows))
    lengths = [
        sum(len(line.split()) for line in own.hypotheses)
        / max(1, sum(len(line.split()) for line in own.references))
        for own in texts
    ]
    ratios = ", ".join(f"{r.name}: {x:.3f}" for r, x in zip(runs, lengths, strict=True))
    parts.append(f"<p>Words of the translations by words of the references: {_text(ratios)}.</p>")
    chrf = CHRF()
    of_sentences = [
        [chrf.sentence_score(h, [r]).score for h, r in zip(own.hypotheses, own.references)]
        for own in texts
    ]
    if others:
        parts.append("<h3>Is the difference chance?</h3>" + _bootstrap(runs, texts))
        gaps = [max(x) - min(x) for x in zip(*of_sentences, strict=True)]
        order = sorted(range(len(gaps)), key=lambda i: -gaps[i])
        parts.append("<h3>The translations that differ most, by sentence chrF</h3>")
        parts.append(_examples(runs, texts, of_sentences, order[:EXAMPLES]))
    else:
        order = sorted(range(len(first.sources)), key=of_sentences[0].__getitem__)
        parts.append("<h3>The worst translations, by sentence chrF</h3>")
        parts.append(_examples(runs, texts, of_sentences, order[:EXAMPLES]))
        parts.append("<h3>The best</h3>")
        parts.append(_examples(runs, texts, of_sentences, order[::-1][:EXAMPLES]))
    return "".join(parts)


def _bootstrap(runs: Sequence[Run], texts: Sequence[Texts]) -> str:
    """sacreBLEU's paired bootstrap test of every run against the first."""
    data = runs[0].config.data
    metric = scores.bleu_metric(data.target_language, data.is_tokenized)
    named = [(run.name, own.hypotheses) for run, own in zip(runs, texts, strict=True)]
    named = [(f"{i}: {name}", lines) for i, (name, lines) in enumerate(named)]
    _, found = PairedTest(
        named, {"BLEU": metric}, [texts[0].references], test_type="bs", n_samples=RESAMPLES
    )()
    (key,) = (key for key in found if key != "System")
    rows = [
        [name.partition(": ")[2], f"{x.score:.2f}", f"{x.mean:.2f} ± {x.ci:.2f}", p]
        for name, x in zip(found["System"], found[key], strict=True)
        for p in [f"{x.p_value:.3f}" if x.p_value is not None else "baseline"]
    ]
    said = f"Paired bootstrap with {RESAMPLES:,} samples, against the first run; 95 % intervals."
    return _table(["run", "BLEU", "mean", "p"], rows) + f'<p class="quiet">{said}</p>'


def _examples(runs, texts, of_sentences, order: Sequence[int]) -> str:
    rows = []
    for i in order:
        rows.append(["source", "", texts[0].sources[i]])
        rows.append(["reference", "", texts[0].references[i]])
        for run, own, chrf in zip(runs, texts, of_sentences, strict=True):
            rows.append([run.name, f"{chrf[i]:.1f}", own.hypotheses[i]])
        rows.append(["", "", ""])
    return _table(["", "chrF", ""], rows)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else str(value)


def _text(value: Any) -> str:
    return html.escape(str(value))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        is_number = str(value).replace(",", "").replace(".", "").lstrip("-").isdecimal()
        return f"<td{' class=n' if is_number else ''}><bdi>{_text(value)}</bdi></td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    names = "".join(f"<th>{_text(name)}</th>" for name in head)
    return f'<div class="wide"><table><tr>{names}</tr>{body}</table></div>'
