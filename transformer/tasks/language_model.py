"""Language modelling: each token of plain text is predicted from those before it.

A text is the target of an empty source. So everything that trains on pairs and translates them also
works here. A prompt is the required beginning of the output.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer.data.batches import EvaluationBatches, PackedPairs
from transformer.data.documents import read_documents, text_sha256
from transformer.data.pairs import PairSource
from transformer.data.plain_text import LanguageData, Windows, text_lines, windows
from transformer.data.tokenizers import get_tokenizers
from transformer.data.words import words_of
from transformer.decoding.inputs import Request
from transformer.models.family import build_model
from transformer.models.functional import Params
from transformer.models.kernels import proven
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.sharding import row_shards
from transformer.tasks import seq2seq
from transformer.tasks.supervised import EVALUATION_ROWS, SupervisedTraining, training_batches
from transformer.tasks.task import (
    Metric,
    Outputs,
    check_family,
    examples,
    from_model,
    needs_model,
)

# evaluate.py shows the model's continuation of the first words of each document beside the true
# words.
PROMPT_WORDS, FOLLOWING_WORDS = 6, 20
ROW_SOURCES = 8  # the most windows in a packed row
DEFINITIONS = {
    "nll": "nats per token, EOS after each document included; windows do not overlap",
    "perplexity": "exp of the nats per token; comparable only with the same vocabulary",
    "byte_perplexity": "exp of the nats per byte of UTF-8 text; comparable between vocabularies",
    "bits_per_byte": "the same as bits",
}


class LanguageModel(seq2seq.Seq2Seq):
    """A model with its vocabulary: it continues prompts and computes the probability of texts."""

    long_lines = "refuse"
    reads_blank = True
    target_language = ""

    @staticmethod
    def open_source(data: LanguageData, split: str) -> PairSource:
        return text_lines(data.texts(split))

    def searched(self, requests: Sequence[Request]) -> list[Request]:
        """Prompts as prefixes: outputs are continuations, prompts included."""
        if any(request.prefix for request in requests):
            raise UserError("a prompt is a prefix already; leave --prefixes out")
        return [request._replace(source="", prefix=request.source) for request in requests]

    def check_sources(self, sources: Sequence[str]) -> None:
        if any(map(str.strip, sources)):
            raise UserError("a language model scores text without a source; leave it empty")

    def windows(self, split: str) -> Windows:
        return windows(self.data.texts(split), self.tokenizers.target, self.data.max_length)

    def batches(self, found: Windows, rows: int) -> EvaluationBatches:
        widths, shards = widths_of(self.data), row_shards(self.mesh)
        return EvaluationBatches.of_pairs(found.pairs, *widths, rows, shards, self.data.packing)

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        with distributed.first_alone():
            found = self.windows(split)
            documents = list(read_documents(self.data.texts(split)))
        batches = self.batches(found, EVALUATION_ROWS * row_shards(self.mesh))
        losses = self.measured(params, extra, batches)
        words = [words_of(" ".join(document)) for document in documents]
        prompts = [" ".join(w[:PROMPT_WORDS]) for w in words]
        beginnings = [" ".join(w[: PROMPT_WORDS + FOLLOWING_WORDS]) for w in words]
        longest = self.translator.config.longest(0)
        counts = self.tokenizers.target.encode_batch(prompts, num_threads=-1)
        kept = [i for i, tokens in enumerate(counts) if len(tokens) < longest]
        if (lost := len(prompts) - len(kept)) and distributed.is_first():
            print(
                f"{split}: {lost} of {len(prompts)} documents are not continued: their first "
                f"{PROMPT_WORDS} words fill the {longest} tokens of an output",
                flush=True,
            )
        prompts, beginnings = [prompts[i] for i in kept], [beginnings[i] for i in kept]

        def count(done: int) -> None:
            progress(done, len(prompts))

        written = self.search(params, extra, list(map(Request, prompts)), progress=count)
        texts = {
            "sources": prompts,
            "references": beginnings,
            "hypotheses": [translations[0].text for translations in written],
        }
        scores = from_model(metrics_of(losses, found.num_bytes), DEFINITIONS)
        columns = {"prompt": prompts, "continued": texts["hypotheses"]}
        return Outputs(texts, scores, examples(columns) if prompts else "")


def metrics_of(losses: Sequence[Any], num_bytes: int) -> dict[str, float]:
    """Metrics from the sums of all batches of a split."""
    nats = sum(float(loss.nll) for loss in losses)
    nll = nats / sum(int(loss.tokens) for loss in losses)
    return {
        "nll": nll,
        "perplexity": math.exp(nll),
        "byte_perplexity": math.exp(nats / num_bytes),
        "bits_per_byte": nats / num_bytes / math.log(2),
    }


def widths_of(data: LanguageData) -> tuple[int, int]:
    """Row widths: of the sources, which are one EOS per window, and of the targets."""
    return ROW_SOURCES if data.packing else 1, data.max_length


class LanguageModelTraining(seq2seq.Seq2SeqTraining):
    """A model and its windows."""

    kind = "window"
    num_bytes: int  # size of the validation text
    # Validation has no further metrics, so nothing is written for it.
    prepare = SupervisedTraining.prepare
    validate = SupervisedTraining.validate

    def metrics(self, found: list[Any]) -> dict[str, float]:
        return metrics_of(found, self.num_bytes)


def prepare(
    config: Any, mesh: jax.sharding.Mesh, workdir: Path, begun_with: LanguageModel | None
) -> LanguageModelTraining:
    """See Task. Documents -> vocabulary -> windows -> rows."""
    check_family(config, "decoder_only")
    data, seed = config.data, config.training.seed
    # 1. Text and vocabulary.
    with distributed.first_alone():
        source = LanguageModel.open_source(data, "train")
        print(f"data     {source.describe()}", flush=True)
        tokenizers = (
            begun_with.tokenizers
            if begun_with
            else get_tokenizers(workdir, config.tokenizer, source)
        )
    model = build_model(proven(config.model, mesh), seq2seq.sizes_of(config, tokenizers))
    task = LanguageModel(data, tokenizers, model, config.decoding, mesh)
    train, validation = task.windows("train"), task.windows("validation")
    print(
        f"data     {train.num_documents:,} documents of {len(train.pairs.target_tokens):,} tokens, "
        f"{train.num_bytes:,} bytes; {len(train.pairs):,} windows"
    )

    # 2. Rows and batches.
    widths = widths_of(data)
    packed = PackedPairs(train.pairs, *widths, seed=seed, packing=data.packing)
    batches = training_batches(config, packed, mesh, f"{data.max_length}")
    held_out = task.batches(validation, batches.layout.rows_per_step)
    files = [text_sha256(data.texts(split)) for split in ("train", "validation")]
    source = LanguageModel.open_source(data, "validation")
    hashes = *files, *(t.sha256 for t in tokenizers)
    made = LanguageModelTraining(config, task, batches, held_out, source, hashes)
    made.num_bytes = validation.num_bytes
    return made


def content_sha256(data: LanguageData, split: str) -> str:
    """See Task."""
    return text_sha256(data.texts(split))


TASK = seq2seq.TASK._replace(
    sections=dict(seq2seq.TASK.sections) | {"data": LanguageData},
    metrics={
        "nll": Metric("lower"),
        "perplexity": Metric("lower"),
        "byte_perplexity": Metric("lower"),
        "bits_per_byte": Metric("lower"),
    },
    main_metric="byte_perplexity",
    score_test_set=None,
    **seq2seq.functions_of(LanguageModel)
    | {"prepare": prepare, "content_sha256": content_sha256, "rescore": needs_model},
)
