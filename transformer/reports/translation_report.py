"""The part of a report about translations of a split: lengths, examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import CHRF

from transformer.data.sources import DataConfig
from transformer.data.words import words_of
from transformer.reports.pages import Picture, panels, plain, table, text
from transformer.reports.plots import style
from transformer.reports.translations import bleu_by_length, groups
from transformer.tasks.pair_training import Texts

EXAMPLES = 8
BOUNDS = (8, 12, 16, 20)


def translations(runs: Sequence[Any], texts: Sequence[Texts]) -> str:
    """HTML about translations of the same sentences by each run (see run_report.py)."""
    parts, (first, *others) = [], texts
    members = groups(first.sources, BOUNDS)
    rows = [["sentences", *[str(len(of_group)) for of_group in members.values()]]]
    for run, own in zip(runs, texts, strict=True):
        by_group = bleu_by_length(run.config.data, own, BOUNDS)
        rows.append([f"BLEU, {run.name}", *[f"{bleu:.1f}" for bleu in by_group.values()]])
        ratios = [_ratio(own, of_group) for of_group in members.values()]
        rows.append([f"length ratio, {run.name}", *[f"{ratio:.3f}" for ratio in ratios]])
    parts.append("<h3>By the words of the source</h3>" + table(["words", *members], rows))
    everywhere = range(len(first.sources))
    lengths = [f"{r.name}: {_ratio(x, everywhere):.3f}" for r, x in zip(runs, texts, strict=True)]
    parts.append(
        f"<p>Length ratio: words of the translations by words of the references. Over all "
        f"sentences: {text(', '.join(lengths))}.</p>"
    )
    chrf = CHRF()
    of_sentences = [
        [chrf.sentence_score(h, [r]).score for h, r in zip(own.hypotheses, own.references)]
        for own in texts
    ]
    if others:
        gaps = [max(x) - min(x) for x in zip(*of_sentences, strict=True)]
        order = sorted(range(len(gaps)), key=lambda i: -gaps[i])
        parts.append("<h3>The translations that differ most, by sentence chrF</h3>")
        parts.append(_examples(runs, texts, of_sentences, order[:EXAMPLES]))
        return "".join(parts)
    order = sorted(everywhere, key=of_sentences[0].__getitem__)
    worst, best = order[:EXAMPLES], order[::-1][:EXAMPLES]
    parts.append("<h3>The worst translations, by sentence chrF</h3>")
    parts.append(_examples(runs, texts, of_sentences, worst))
    parts.append("<h3>The best</h3>")
    parts.append(_examples(runs, texts, of_sentences, best))
    return "".join(parts)


def lengths_figure(runs: Mapping[str, tuple[DataConfig, Texts]]) -> Picture:
    """BLEU of runs by the words of the source; all have translated the same sentences."""
    figure, (axes,) = panels(1, columns=1, height=4.5, width=9)
    for number, (name, (data, texts)) in enumerate(runs.items()):
        sizes = {key: len(members) for key, members in groups(texts.sources, BOUNDS).items()}
        look = style(number, len(sizes)) | {"markersize": 4}
        found = list(bleu_by_length(data, texts, BOUNDS).values())
        axes.plot(range(len(sizes)), found, label=plain(name), **look)
    axes.set_xticks(range(len(sizes)), [f"{x}\n{n} sentences" for x, n in sizes.items()])
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.grid(color="0.9")
    if len(runs) > 1:
        figure.legend(frameon=False, loc="outside right upper")
    return figure


def _ratio(texts: Texts, members: Sequence[int]) -> float:
    translated, expected = (
        sum(len(words_of(side[i])) for i in members)
        for side in (texts.hypotheses, texts.references)
    )
    return translated / max(1, expected)


def _examples(runs, texts, of_sentences, order: Sequence[int]) -> str:
    first, rows = texts[0], []
    for i in order:
        rows.append(["source", "", first.sources[i]])
        rows.append(["reference", "", first.references[i]])
        for run, own, chrf in zip(runs, texts, of_sentences, strict=True):
            rows.append([run.name, f"{chrf[i]:.1f}", own.hypotheses[i]])
        rows.append(["", "", ""])
    return table(["", "chrF", ""], rows)
