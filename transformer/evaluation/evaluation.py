"""How good a model is on a split: nll per token, and scores of real translations."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer.data.batches import Batch
from transformer.data.sources import DataConfig, PairSource
from transformer.decoding.translation import Translator
from transformer.evaluation.scores import bleu, corpus_scores
from transformer.models.functional import Params
from transformer.models.loss import Loss
from transformer.system.files import write_atomically


class Translations(NamedTuple):
    """A split in its own order; references are the text of the data, as it is."""

    sources: list[str]
    references: list[str]
    hypotheses: list[str]

    def bleu(self, data: DataConfig) -> float:
        return bleu(self.hypotheses, self.references, **_kind_of_text(data))

    def scores(self, data: DataConfig) -> dict[str, dict]:
        return corpus_scores(self.hypotheses, self.references, **_kind_of_text(data))

    def examples(self, count: int) -> str:
        """Source, reference and translation of a few sentences spread over the split."""
        step = max(1, len(self.sources) // count)
        lines = []
        for source, reference, hypothesis in itertools.islice(
            zip(*self, strict=True), step // 2, None, step
        ):
            lines += [f"  source       {source}", f"  reference    {reference}"]
            lines += [f"  translation  {hypothesis}", ""]
        return "\n".join(lines[: 4 * count][:-1])


def mean_nll(
    nll_step: Callable[[Params, Batch], Loss], params: Params, batches: Iterable[Batch]
) -> float:
    """Cross-entropy in nats per target token, EOS included; exp of it is the perplexity."""
    losses = jax.device_get([nll_step(params, batch) for batch in batches])
    return float(sum(loss.nll for loss in losses) / sum(loss.tokens for loss in losses))


def translate_source(
    translator: Translator,
    params: Params,
    source: PairSource,
    progress: Callable[[int], None] = lambda done: None,
) -> Translations:
    """Translates every sentence of a split, each once."""
    sources, references = (list(side) for side in zip(*source.pairs(), strict=True))
    return Translations(sources, references, translator.translate(params, sources, progress))


def write_evaluation(
    workdir: Path, split: str, translations: Translations, scores: dict[str, Any]
) -> Path:
    """WORKDIR/eval/<split>/: the three texts, one sentence a line, and scores.json last."""
    directory = workdir / "eval" / split.replace("/", "_")
    directory.mkdir(parents=True, exist_ok=True)
    for name, lines in translations._asdict().items():
        write_atomically(directory / f"{name}.txt", one_a_line(lines))
    write_atomically(directory / "scores.json", json.dumps(scores, indent=2) + "\n")
    return directory


def one_a_line(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _kind_of_text(data: DataConfig) -> dict[str, Any]:
    return {"target_language": data.target_language, "is_tokenized": data.is_tokenized}
