"""Documents to summaries, scored by ROUGE. Training and search are those of `seq2seq`.

Documents longer than the model takes are cut to data.max_source_length tokens in training,
validation and evaluation, or refused, as data.long_documents says.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import jax

from transformer.data.pairs import PairSource
from transformer.data.summaries import (
    SummaryData,
    lines_of_documents,
    open_summaries,
    references,
)
from transformer.data.token_files import TokenizedPairs
from transformer.decoding.programs import Variables
from transformer.metrics.summary_scores import (
    check_package,
    lead,
    rouge,
    statistics,
    warn_of_other_scripts,
)
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.tasks import seq2seq
from transformer.tasks.pair_training import Texts
from transformer.tasks.source_gain import METRICS
from transformer.tasks.task import Metric, from_model

LEAD = 3  # the baselines take the document's first LEAD sentences or lines
PERPLEXITY = "per token of the (first) references, EOS included; other vocabularies have another"


class Summarization(seq2seq.Seq2Seq):
    """A model with its vocabularies: it summarises, and scores its summaries."""

    target_language = ""

    def __init__(self, data: SummaryData, *others: Any):
        self.long_lines = data.long_documents
        super().__init__(data, *others)

    open_source = staticmethod(open_summaries)

    @staticmethod
    def source_cut(data: SummaryData) -> int | None:
        return data.max_source_length if data.long_documents == "cut" else None

    @staticmethod
    def check_data(data: SummaryData, references: Sequence[str] = ()) -> None:
        del data, references
        check_package()

    @staticmethod
    def check_pairs(data: SummaryData, *splits: TokenizedPairs) -> None:
        if data.long_documents == "cut":
            return
        limit = data.max_source_length
        for name, pairs in zip(("train", "validation"), splits, strict=True):
            too_long = int((pairs.source_lengths > limit).sum()) + pairs.report["source_too_long"]
            _refuse(too_long, pairs.report["total"], name, limit)

    def prepare(self, variables: Variables, source: PairSource) -> dict[str, jax.stages.Compiled]:
        pairs = list(source.pairs())
        print(f"data     validation: {self._count_long([document for document, _ in pairs])}")
        warn_of_other_scripts([summary for _, summary in pairs])
        return super().prepare(variables, source)

    def evaluate(self, params, extra, split, progress):
        with distributed.first_alone():
            sources = [source for source, _ in self.open_source(self.data, split).pairs()]
        print(f"{split}: {self._count_long(sources)}", flush=True)
        if self.data.long_documents == "refuse":
            _refuse(self._num_long(sources), len(sources), split, self.data.max_source_length)
        found = super().evaluate(params, extra, split, progress)
        texts = dict(found.texts)
        for number, column in enumerate(references(self.data, split)[1:], start=2):
            texts[f"references.{number}"] = column
        return found._replace(texts=texts)

    @staticmethod
    def text_scores(data: SummaryData, texts: Texts) -> dict[str, dict[str, Any]]:
        """ROUGE with and without stemming, also of baselines, and statistics."""
        columns = references(data, texts.split)
        for column in columns:
            warn_of_other_scripts(column)

        def scored(hypotheses: Sequence[str], stemmer: bool = True) -> dict[str, dict[str, Any]]:
            return rouge(hypotheses, columns, data.line_break, stemmer=stemmer)

        found = scored(texts.hypotheses)
        plain = scored(texts.hypotheses, stemmer=False)
        found |= {f"{name}_unstemmed": score for name, score in plain.items()}
        baselines = {f"lead{LEAD}": lead(texts.sources, LEAD, data.line_break)}
        lines = lines_of_documents(data, texts.split)
        if max(map(len, lines)) > 1:
            baselines[f"lead{LEAD}_lines"] = [data.line_break.join(x[:LEAD]) for x in lines]
        for name, beginnings in baselines.items():
            found |= {f"{name}_{metric}": score for metric, score in scored(beginnings).items()}
        return found | statistics(texts.sources, texts.hypotheses, columns, data.line_break)

    def model_scores(self, variables: Variables, texts: Texts) -> dict[str, dict[str, Any]]:
        pairs = self.translator.token_pairs(texts.sources, texts.references)
        forced = self.translator.forced.decode(variables, *pairs)
        log_prob = sum(float(x.log_probs_T.sum(dtype="float64")) for x in forced)
        nll = -log_prob / sum(len(x.log_probs_T) for x in forced)
        longest, what = self.data.max_source_length, self.data.long_documents
        long = f"documents of more than {longest} tokens, EOS included: {what}"
        number = float(self._num_long(texts.sources))
        return from_model(
            {"perplexity": math.exp(nll), "long_documents": number},
            {"perplexity": PERPLEXITY, "long_documents": long},
        )

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        columns, line_break = [texts.references], self.data.line_break
        found = rouge(texts.hypotheses, columns, line_break, stemmer=True)
        found |= statistics(texts.sources, texts.hypotheses, columns, line_break)
        return {name: found[name]["score"] for name in TASK.metrics if name in found}

    def _num_long(self, sources: Sequence[str]) -> int:
        encoded = self.tokenizers.source.encode_batch(list(sources), num_threads=-1)
        return sum(len(tokens) >= self.data.max_source_length for tokens in encoded)

    def _count_long(self, sources: Sequence[str]) -> str:
        return (
            f"{self._num_long(sources):,} of {len(sources):,} documents have more than "
            f"{self.data.max_source_length} tokens ({self.data.long_documents})"
        )


def _refuse(too_long: int, total: int, split: str, limit: int) -> None:
    if too_long:
        raise UserError(
            f"{too_long} of {total} documents of {split} have more than data.max_source_length = "
            f"{limit} tokens; raise it, or set data.long_documents to 'cut'"
        )


def content_sha256(data: SummaryData, split: str) -> str:
    """See Task; hashes the documents and all references."""
    if split == "train":
        return seq2seq.content_sha256(data, split, Summarization)
    documents = [document for document, _ in open_summaries(data, split).pairs()]
    content = hashlib.sha256()
    for texts in zip(documents, *references(data, split), strict=True):
        content.update("".join(f"{text}\n" for text in texts).encode(errors="surrogatepass"))
    return content.hexdigest()


TASK = seq2seq.TASK._replace(
    sections=dict(seq2seq.TASK.sections) | {"data": SummaryData},
    metrics={
        "nll": Metric("lower"),
        "rouge1": Metric("higher", full=True),
        "rouge2": Metric("higher", full=True),
        "rougeL": Metric("higher", full=True),
        "rougeLsum": Metric("higher", full=True),
        "repeated_trigrams": Metric("lower", full=True),
        **METRICS,
    },
    main_metric="rougeL",
    **seq2seq.functions_of(Summarization) | {"content_sha256": content_sha256},
    score_test_set=None,
)
