"""Masked language modelling (Devlin et al. 2019): hidden tokens of documents are predicted."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.batches import TrainingBatches
from transformer.data.documents import cut, read_documents, text_sha256, tokenize
from transformer.data.masking import MaskedRows
from transformer.data.sequences import Masked, evaluation_rows
from transformer.data.sources import SPLITS
from transformer.data.wordpiece import FILES, WordPiece, WordPieceConfig
from transformer.metrics.masked_baselines import masked_baselines
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.models.kernels import proven
from transformer.models.loss import cross_entropy
from transformer.system import distributed
from transformer.system.errors import UserError, check_choice, check_range, place
from transformer.system.paths import named_files
from transformer.system.sharding import (
    data_mesh,
    distribute,
    row_shards,
    split_rows,
)
from transformer.tasks import pretrained_bert
from transformer.tasks.encoders import (
    check_model,
    get_tokenizer,
    no_ensemble,
    rows_to_evaluate,
    training_batches,
)
from transformer.tasks.task import Examples, Facts, Metric, Outputs, Task, examples
from transformer.training.step import TrainState, evaluation_step, make_train_step

HEADS = ("masked_lm", "pre_training")


@dataclasses.dataclass(frozen=True)
class MaskedLMData:
    """The data section; see configs/bert_base.py."""

    train_text: str | None = place()
    validation_text: str | None = place()
    test_text: str | None = place()
    max_length: int
    short_rate: float
    duplicates: int
    mask_rate: float
    max_predictions: int
    masking: str
    whole_words: bool
    packing: bool

    def __post_init__(self):
        check_range(self, "data", "max_length", 5)  # [CLS], two [SEP], two sentences of a token
        check_range(self, "data", "duplicates", 1, 1001)
        check_range(self, "data", "max_predictions", 1)
        check_range(self, "data", "short_rate mask_rate", 0, 1)
        check_choice(self, "data", "masking", ("static", "dynamic"))

    def files(self, split: str) -> list[str]:
        """The text files of a split; UserError if there are none."""
        if split not in SPLITS:
            raise UserError(f"there is no split {split!r}; there are: {', '.join(SPLITS)}")
        patterns = getattr(self, f"{split}_text")
        if not patterns:
            raise UserError(f"no text for the {split} split; give data.{split}_text")
        return named_files(patterns, f"data.{split}_text")


class Measured(NamedTuple):
    """Sums over a batch, and the most probable token of each masked position."""

    nll: jax.Array
    tokens: jax.Array
    correct: jax.Array
    sequences: jax.Array  # those with a next-sentence label
    next_correct: jax.Array
    predicted_BP: jax.Array


class MaskedLM:
    """A model with its vocabulary: it predicts masked tokens and counts correct ones."""

    classes = None

    def __init__(
        self, config: Any, tokenizer: WordPiece, model: FunctionalModel, mesh: jax.sharding.Mesh
    ):
        self.data = config.data
        self.has_pairs = config.model.head == "pre_training"
        self.tokenizer = tokenizer
        self.model = model
        self.mesh = mesh

    def save(self, workdir: Path) -> None:
        self.tokenizer.save(workdir)

    def provenance(self) -> dict[str, Any]:
        return {"tokenizer_sha256": [self.tokenizer.sha256]}

    def rows(self, split: str, seed: int, duplicates: int) -> MaskedRows:
        """The sequences of a split, packed in rows."""
        data = self.data
        documents = tokenize(data.files(split), self.tokenizer)
        sequences = cut(
            documents, data.max_length, data.short_rate, duplicates, self.has_pairs, seed
        )
        return MaskedRows(
            sequences,
            self.tokenizer,
            data.max_length,
            data.max_predictions,
            rate=data.mask_rate,
            whole_words=data.whole_words,
            seed=seed,
            packing=data.packing,
        )

    def held_out(self, split: str) -> MaskedRows:
        """Sequences for evaluation, the same for every seed of a run."""
        return self.rows(split, seed=0, duplicates=1)

    def make_measure(self) -> Any:
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
        rows = rows_to_evaluate(packed, self.mesh)
        measure, found = self.make_measure(), []
        columns: dict[str, list[str]] = {"sources": [], "references": [], "hypotheses": []}
        for number, batch in enumerate(batches(packed, rows, self.mesh)):
            found.append(jax.device_get(measure(params, extra, batch)))
            own = packed.masked(rows[number], 1.0)
            for b in np.flatnonzero(rows[number] >= 0):
                is_real, is_masked = own.segments_BS[b] > 0, own.labels_BP[b] > 0
                texts = own.tokens_BS[b][is_real], own.labels_BP[b][is_masked]
                for name, ids in zip(
                    columns, (*texts, found[-1].predicted_BP[b][is_masked]), strict=True
                ):
                    columns[name].append(self.tokenizer.decode(ids.tolist()))
            progress(min(rows[: number + 1].max() + 1, len(packed)), len(packed))
        scores = {
            name: {"score": score, "definition": DEFINITIONS[name], "needs_model": True}
            for name, score in self.metrics(found).items()
        }
        return Outputs(columns, scores, examples(columns))


DEFINITIONS = {
    "nll": "nats per masked token",
    "masked_accuracy": "per cent of the masked tokens that are the most probable ones",
    "next_sentence_accuracy": "per cent of the pairs of which it is known whether B follows A",
}


def batches(packed: MaskedRows, rows: np.ndarray, mesh: jax.sharding.Mesh) -> Iterator[Masked]:
    """The batches of `evaluation_rows` on the devices."""
    for numbers in rows:

        def make(part: np.ndarray) -> Masked:
            return packed.masked(part, 1.0)

        yield distribute(make, numbers, split_rows(mesh, axis=0))


def _all_rows(packed: MaskedRows) -> Iterator[Masked]:
    """All rows in order, on the host."""
    return (packed.masked(np.array([row]), 1.0) for row in range(len(packed)))


class MaskedLMTraining:
    """A model and its sequences, packed into the rows of batches over a mesh."""

    def __init__(
        self,
        config: Any,  # a Config
        mesh: jax.sharding.Mesh,
        task: MaskedLM,
        training: TrainingBatches,
        validation: MaskedRows,
        data_id: str,
    ):
        self.training = config.training
        self.mesh = mesh
        self.task = task
        self.batches = training
        self.packed: MaskedRows = training.packed
        self.validation = validation
        self.validation_rows = evaluation_rows(
            validation, training.layout.rows_per_step, row_shards(mesh)
        )
        self.is_dynamic = config.data.masking == "dynamic"
        self.data_id = data_id
        self.num_tokens = self.packed.num_tokens
        flops = config.family.flops
        sizes = sizes_of(config, task.tokenizer)
        lengths = self.packed.lengths, self.packed.predictions
        self.flops = float(flops(config.model, sizes, *lengths).sum())

    def batch(self, number: int) -> tuple[Masked, int]:
        rows = self.batches.rows(number)
        weight = self.packed.weight(rows)
        # With dynamic masking, each visit masks other tokens of a row.
        visits = self.batches.epochs(number) if self.is_dynamic else 0
        rows_and_visits = np.where(rows < 0, -1, rows + visits * len(self.packed))

        def make(part: np.ndarray) -> Masked:
            return self.packed.masked(part, weight)

        batch = distribute(make, rows_and_visits, split_rows(self.mesh, axis=1))
        return batch, self.packed.num_tokens_of(rows)

    def make_step(self, optimizer):
        return make_train_step(self.task.model, optimizer, self.training, self.mesh)

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        batch = next(batches(self.validation, self.validation_rows[:1], self.mesh))
        measure = self.task.make_measure()
        self.measure = measure.lower(state.params, state.extra, batch).compile()
        jax.block_until_ready(self.measure(state.params, state.extra, batch))
        return {"validation step": self.measure}

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        del full  # validation has no further metrics
        found = []
        for batch in batches(self.validation, self.validation_rows, self.mesh):
            check()
            found.append(self.measure(state.params, state.extra, batch))
        return self.task.metrics(jax.device_get(found)), Examples()

    def examples(self, number: int) -> list[dict[str, Any]]:
        decode, packed = self.task.tokenizer.decode, self.packed
        return [
            {"sequence": int(i), "text": decode(packed.tokens_of(i)[0].tolist())}
            for i in packed.pairs_of(self.batches.rows(number).ravel())
        ]

    def facts(self) -> Facts:
        documents = self.packed.sequences.documents
        counts = {
            "documents": len(documents),
            "tokens of documents": len(documents.tokens),
            "sequences": len(self.packed.lengths),
            "masked tokens": int(self.packed.predictions.sum()),
            "sequences of validation": len(self.validation.lengths),
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
        files = {split: data.files(split) for split in ("train", "validation")}
        print(f"data     {', '.join(files['train'])}", flush=True)
        tokenizer = get_tokenizer(
            config,
            workdir,
            begun_with,
            lambda: (line for document in read_documents(files["train"]) for line in document),
        )
        model = build_model(proven(config.model, mesh), sizes_of(config, tokenizer))
        task = MaskedLM(config, tokenizer, model, mesh)
        packed = task.rows("train", seed, data.duplicates)
        validation = task.held_out("validation")

    # 2. Rows and batches.
    training = training_batches(config, packed, mesh)
    documents = packed.sequences.documents
    print(
        f"data     {len(documents)} documents of {len(documents.tokens)} tokens, "
        f"{len(packed.sequences)} sequences"
    )
    shares = masked_baselines(documents, _all_rows(validation))
    print(
        f"baseline the most frequent token is {shares['unigram']:.1%} of the masked tokens of "
        f"validation, that after the token before {shares['bigram']:.1%}"
    )
    hashes = [text_sha256(paths) for paths in files.values()]
    spans = packed.sequences.spans.astype("<i8")
    hashes += [hashlib.sha256(spans.data).hexdigest(), tokenizer.sha256, training.fingerprint]
    data_id = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return MaskedLMTraining(config, mesh, task, training, validation, data_id)


def restore(config: Any, workdir: Path) -> MaskedLM:
    """See Task."""
    tokenizer = WordPiece.load(workdir, workdir)
    model = build_model(config.model, sizes_of(config, tokenizer))
    return MaskedLM(config, tokenizer, model, data_mesh())


def content_sha256(data: MaskedLMData, split: str) -> str:
    """See Task."""
    return text_sha256(data.files(split))


def rescore(data: MaskedLMData, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """See Task; all scores need the model."""
    return {}


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
    rescore=rescore,
    pretrained=pretrained_bert.read,
)
