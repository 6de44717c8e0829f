"""Masked language modelling (Devlin et al. 2019): hidden tokens of documents are predicted."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.documents import cut, read_documents, text_sha256, tokenize
from transformer.data.masking import MaskedLMData, MaskedRows
from transformer.data.sequences import Masked
from transformer.data.wordpiece import FILES, WordPiece, WordPieceConfig
from transformer.metrics.masked_baselines import masked_baselines
from transformer.models.family import Sizes, build_model
from transformer.models.functional import Params
from transformer.models.kernels import proven
from transformer.models.loss import cross_entropy
from transformer.system import distributed
from transformer.system.sharding import data_mesh, distribute, split_rows
from transformer.tasks import pretrained_bert
from transformer.tasks.encoders import (
    EncoderTask,
    check_model,
    get_tokenizer,
    no_ensemble,
)
from transformer.tasks.supervised import SupervisedTraining, training_batches
from transformer.tasks.task import (
    Facts,
    Metric,
    Outputs,
    Task,
    examples,
    from_model,
    needs_model,
)
from transformer.training.step import evaluation_step

HEADS = ("masked_lm", "pre_training")


class Measured(NamedTuple):
    """Sums over a batch, and the most probable token of each masked position."""

    nll: jax.Array
    tokens: jax.Array
    correct: jax.Array
    sequences: jax.Array  # those with a next-sentence label
    next_correct: jax.Array
    predicted_BP: jax.Array


class MaskedLM(EncoderTask):
    """A model with its vocabulary: it predicts masked tokens and counts correct ones."""

    def rows(self, split: str, seed: int, duplicates: int) -> MaskedRows:
        """The sequences of a split, packed in rows."""
        data = self.data
        documents = tokenize(data.texts(split), self.tokenizer)
        asked = data.max_length, data.short_rate, duplicates, self.has_pairs, seed
        sequences = cut(documents, *asked)
        return MaskedRows(sequences, self.tokenizer, data, seed)

    def held_out(self, split: str) -> MaskedRows:
        """Sequences for evaluation, the same for every seed of a run."""
        return self.rows(split, seed=0, duplicates=1)

    @functools.cached_property
    def measure(self) -> Any:
        """The jitted (params, extra, batch) -> Measured."""

        def measure(bound: Any, batch: Masked) -> Measured:
            logits_BPV, logits_BC2 = bound.predict(batch)
            is_masked_BP = batch.labels_BP > 0
            loss = cross_entropy(logits_BPV, batch.labels_BP, is_masked_BP, 0.0)
            predicted_BP = jnp.argmax(logits_BPV, axis=-1).astype(jnp.int32)
            right_BP = (predicted_BP == batch.labels_BP) & is_masked_BP
            is_pair_BC = batch.is_random_BC >= 0
            next_right_BC = jnp.zeros_like(is_pair_BC)
            if logits_BC2 is not None:
                next_right_BC = is_pair_BC & (jnp.argmax(logits_BC2, -1) == batch.is_random_BC)
            counts = (right_BP, is_pair_BC, next_right_BC)
            correct, sequences, next_correct = (jnp.sum(x, dtype=jnp.int32) for x in counts)
            return Measured(loss.nll, loss.tokens, correct, sequences, next_correct, predicted_BP)

        return evaluation_step(measure, self.model, self.mesh)

    def metrics(self, measured: Sequence[Measured]) -> dict[str, float]:
        """The task's metrics over all batches of a split."""
        sums = [sum(float(getattr(m, name)) for m in measured) for name in Measured._fields[:5]]
        nll, tokens, correct, sequences, next_correct = sums
        found = {"nll": nll / tokens, "masked_accuracy": 100 * correct / tokens}
        if self.has_pairs:
            found["next_sentence_accuracy"] = 100 * next_correct / max(sequences, 1)
        return found

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        with distributed.first_alone():
            packed = self.held_out(split)
        batches = self.in_batches(packed)
        found = self.measured(
            params, extra, batches, lambda done: progress(done, len(packed.lengths))
        )
        columns: dict[str, list[str]] = {"sources": [], "references": [], "hypotheses": []}
        for number, of_batch in enumerate(found):
            own = batches[number]
            for b in np.flatnonzero(batches.rows(number) >= 0):
                is_real, is_masked = own.segments_BS[b] > 0, own.labels_BP[b] > 0
                texts = own.tokens_BS[b][is_real], own.labels_BP[b][is_masked]
                predicted = of_batch.predicted_BP[b][is_masked]
                for name, ids in zip(columns, (*texts, predicted), strict=True):
                    columns[name].append(self.tokenizer.decode(ids.tolist()))
        return Outputs(columns, from_model(self.metrics(found), DEFINITIONS), examples(columns))


DEFINITIONS = {
    "nll": "nats per masked token",
    "masked_accuracy": "per cent of the masked tokens that are the most probable ones",
    "next_sentence_accuracy": "per cent of the pairs of which it is known whether B follows A",
}


class MaskedLMTraining(SupervisedTraining):
    """A model and its sequences."""

    kind = "sequence"

    def batch(self, number: int) -> tuple[Masked, int]:
        rows = self.batches.rows(number)
        weight = self.packed.weight(rows)
        # With dynamic masking, each visit masks other tokens of a row.
        is_dynamic = self.task.data.masking == "dynamic"
        visits = self.batches.epochs(number) if is_dynamic else 0
        rows_and_visits = np.where(rows < 0, -1, rows + visits * len(self.packed))

        def make(part: np.ndarray) -> Masked:
            return self.packed.masked(part, weight)

        batch = distribute(make, rows_and_visits, split_rows(self.mesh, axis=1))
        return batch, self.packed.num_tokens_of(rows)

    def metrics(self, found: list[Measured]) -> dict[str, float]:
        return self.task.metrics(found)

    def shown(self, number: int) -> dict[str, Any]:
        tokens, _ = self.packed.tokens_of(number)
        return {self.kind: number, "text": self.task.tokenizer.decode(tokens.tolist())}

    def facts(self) -> Facts:
        documents = self.packed.sequences.documents
        counts = {
            "documents": len(documents),
            "tokens of documents": len(documents.tokens),
            "sequences": len(self.packed.lengths),
            "masked tokens": int(self.packed.predictions.sum()),
            "sequences of validation": len(self.validation.packed.lengths),
            "vocabulary": self.task.tokenizer.vocab_size,
        }
        return Facts(counts, {"tokens of a sequence": np.bincount(self.packed.lengths).tolist()})


def sizes_of(config: Any, tokenizer: WordPiece) -> Sizes:
    size = tokenizer.vocab_size
    return Sizes(size, size, True, config.data.max_length, config.data.max_length)


def prepare(
    config: Any, mesh: jax.sharding.Mesh, workdir: Path, begun_with: Any
) -> MaskedLMTraining:
    """See Task. Documents -> vocabulary -> sequences -> packed rows."""
    check_model(config, HEADS)
    data, seed = config.data, config.training.seed
    # 1. Text and vocabulary. One process makes new files; the others would make the same.
    with distributed.first_alone():
        texts = {split: data.texts(split) for split in ("train", "validation")}
        print(f"data     {texts['train']}", flush=True)
        tokenizer = get_tokenizer(
            config,
            workdir,
            begun_with,
            lambda: (line for document in read_documents(texts["train"]) for line in document),
        )
        sizes = sizes_of(config, tokenizer)
        model = build_model(proven(config.model, mesh), sizes)
        task = MaskedLM(config, tokenizer, model, mesh)
        packed = task.rows("train", seed, data.duplicates)
        validation = task.held_out("validation")

    # 2. Rows and batches.
    training = training_batches(config, packed, mesh, f"{data.max_length}")
    documents = packed.sequences.documents
    print(
        f"data     {len(documents)} documents of {len(documents.tokens)} tokens, "
        f"{len(packed.sequences)} sequences"
    )
    rows = (validation.batch(np.array([row])) for row in range(len(validation)))
    shares = masked_baselines(documents, rows)
    print(
        f"baseline the most frequent token is {shares['unigram']:.1%} of the masked tokens of "
        f"validation, that after the token before {shares['bigram']:.1%}"
    )
    hashes = [*map(text_sha256, texts.values())]
    spans = packed.sequences.spans.astype("<i8")
    hashes += [hashlib.sha256(spans.data).hexdigest(), tokenizer.sha256]
    held_out = task.in_batches(validation, training.layout.rows_per_step)
    return MaskedLMTraining(config, task, training, held_out, sizes, hashes)


def restore(config: Any, workdir: Path) -> MaskedLM:
    """See Task."""
    tokenizer = WordPiece.load(workdir, workdir)
    model = build_model(config.model, sizes_of(config, tokenizer))
    return MaskedLM(config, tokenizer, model, data_mesh())


def content_sha256(data: MaskedLMData, split: str) -> str:
    """See Task."""
    return text_sha256(data.texts(split))


TASK = Task(
    sections={"data": MaskedLMData, "tokenizer": WordPieceConfig},
    metrics={
        "masked_accuracy": Metric("higher"),
        "nll": Metric("lower"),
        "next_sentence_accuracy": Metric("higher"),
    },
    main_metric="masked_accuracy",
    prepare=prepare,
    restore=restore,
    files=FILES,
    ensemble=no_ensemble,
    content_sha256=content_sha256,
    rescore=needs_model,
    pretrained=pretrained_bert.read,
)
