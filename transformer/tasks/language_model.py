"""Language modelling: each token of plain text is predicted from those before it.

A text is the target of an empty source. So everything that trains on pairs and translates them also
works here. A prompt is the required beginning of the output.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer.data.batches import EvaluationBatches, PackedPairs, TrainingBatches, layout
from transformer.data.documents import read_documents, text_sha256
from transformer.data.plain_text import LanguageData, Lines, Windows, windows
from transformer.data.sources import PairSource
from transformer.data.tokenizers import get_tokenizers
from transformer.data.words import words_of
from transformer.decoding.inputs import Request
from transformer.models.family import build_model
from transformer.models.functional import Params
from transformer.models.kernels import proven
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.sharding import distribute, row_shards, split_rows
from transformer.tasks import seq2seq
from transformer.tasks.encoders import EVALUATION_ROWS
from transformer.tasks.task import Examples, Metric, Outputs, Task, examples, tokens_at_once
from transformer.training.step import TrainState, make_nll_step

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
        return Lines(data.files(split))

    def searched(self, requests: Sequence[Request]) -> list[Request]:
        """Prompts as prefixes: outputs are continuations, prompts included."""
        if any(request.prefix for request in requests):
            raise UserError("a prompt is a prefix already; leave --prefixes out")
        return [request._replace(source="", prefix=request.source) for request in requests]

    def check_sources(self, sources: Sequence[str]) -> None:
        if any(map(str.strip, sources)):
            raise UserError("a language model scores text without a source; leave it empty")

    def windows(self, split: str) -> Windows:
        return windows(self.data.files(split), self.tokenizers.target, self.data.max_length)

    def batches(self, found: Windows, rows: int, mesh: jax.sharding.Mesh) -> EvaluationBatches:
        widths = widths_of(self.data)
        packing = self.data.packing
        return EvaluationBatches(found.pairs, *widths, rows, row_shards(mesh), packing)

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        mesh = self.translator.mesh
        with distributed.first_alone():
            found = self.windows(split)
            documents = list(read_documents(self.data.files(split)))
        batches = self.batches(found, EVALUATION_ROWS * row_shards(mesh), mesh)
        nll_step, losses = make_nll_step(self.model, mesh), []
        for number in range(len(batches)):
            rows = batches.rows(number)
            batch = distribute(batches.packed.batch, rows, split_rows(mesh, axis=0))
            losses.append(jax.device_get(nll_step(params, extra, batch)))
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
        scores = {
            name: {"score": score, "definition": DEFINITIONS[name], "needs_model": True}
            for name, score in metrics_of(losses, found.num_bytes).items()
        }
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

    def __init__(self, *arguments: Any, num_bytes: int):
        """num_bytes: size of the validation text."""
        super().__init__(*arguments)
        self.num_bytes = num_bytes

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        nll_step = make_nll_step(self.task.model, self.mesh)
        batch = next(self._validation_batches())
        self.nll_step = nll_step.lower(state.params, state.extra, batch).compile()
        jax.block_until_ready(self.nll_step(state.params, state.extra, batch))
        return {"validation step": self.nll_step}

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        del full  # validation has no further metrics
        losses = []
        for batch in self._validation_batches():
            check()
            losses.append(self.nll_step(state.params, state.extra, batch))
        return metrics_of(jax.device_get(losses), self.num_bytes), Examples()


def prepare(
    config: Any, mesh: jax.sharding.Mesh, workdir: Path, begun_with: LanguageModel | None
) -> LanguageModelTraining:
    """See Task. Documents -> vocabulary -> windows -> rows."""
    if config.model.family != "decoder_only":
        raise UserError(
            "task.name is 'language_model', which needs model.family 'decoder_only'; it is "
            f"{config.model.family!r}"
        )
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
    at_once = tokens_at_once(config.training.max_tokens_per_device, mesh)
    rows = layout(config.training.tokens_per_update, at_once, *widths, row_shards(mesh))
    batches = TrainingBatches(packed, rows, seed)
    print(
        f"batches  {rows.rows} rows of {data.max_length} tokens, "
        f"{batches.updates_per_epoch:.1f} updates an epoch; {rows.accumulation} x "
        f"{rows.rows_per_step} rows"
    )
    held_out = task.batches(validation, rows.rows_per_step, mesh)
    files = [text_sha256(data.files(split)) for split in ("train", "validation")]
    hashes = [*files, *(t.sha256 for t in tokenizers), batches.fingerprint]
    data_id = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    source = LanguageModel.open_source(data, "validation")
    arguments = config, mesh, task, batches, held_out, source, data_id
    return LanguageModelTraining(*arguments, num_bytes=validation.num_bytes)


def restore(config: Any, workdir: Path) -> LanguageModel:
    """See Task."""
    return seq2seq.restore(config, workdir, kind=LanguageModel)


def content_sha256(data: LanguageData, split: str) -> str:
    """See Task."""
    return text_sha256(data.files(split))


def rescore(data: LanguageData, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """See Task; all scores need the model."""
    return {}


TASK = Task(
    sections=dict(seq2seq.TASK.sections) | {"data": LanguageData},
    metrics={
        "nll": Metric("lower"),
        "perplexity": Metric("lower"),
        "byte_perplexity": Metric("lower"),
        "bits_per_byte": Metric("lower"),
    },
    main_metric="byte_perplexity",
    prepare=prepare,
    restore=restore,
    files=seq2seq.TASK.files,
    ensemble=seq2seq.ensemble,
    content_sha256=content_sha256,
    rescore=rescore,
)
