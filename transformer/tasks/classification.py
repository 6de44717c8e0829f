"""Classification or regression of texts and pairs of texts, by an encoder with a head (BERT)."""

import collections
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data.batches import TrainingBatches
from transformer.data.labelled import LabelledRows
from transformer.data.labelled_text import (
    Example,
    LabelledData,
    classes_of,
    examples_sha256,
    numbers_of,
    read_examples,
)
from transformer.data.sequences import Labelled, evaluation_rows
from transformer.data.wordpiece import FILES, WordPiece, WordPieceConfig
from transformer.metrics.labels import class_scores, number_scores
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.models.kernels import proven
from transformer.models.loss import Loss
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import write_json
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
from transformer.tasks.task import (
    Examples,
    Facts,
    Metric,
    Outputs,
    Task,
    examples,
    mean_nll,
    read_classes,
)
from transformer.training.step import TrainState, evaluation_step, make_train_step

LABELS = "labels.json"  # in a work directory


class Classification:
    """A model with its vocabulary and its labels (None for a regression)."""

    def __init__(
        self,
        config: Any,
        tokenizer: WordPiece,
        classes: list[str] | None,
        model: FunctionalModel,
        mesh: jax.sharding.Mesh,
    ):
        self.data: LabelledData = config.data
        self.tokenizer = tokenizer
        self.classes = classes
        self.model = model
        self.mesh = mesh

    @property
    def is_regression(self) -> bool:
        return self.classes is None

    @property
    def labels(self) -> list[str]:
        return self.classes or ["number"]

    def save(self, workdir: Path) -> None:
        self.tokenizer.save(workdir)
        write_json(workdir / LABELS, {"classes": self.classes})

    def provenance(self) -> dict[str, Any]:
        return {"tokenizer_sha256": [self.tokenizer.sha256], "classes": self.classes}

    def rows(self, split: str, given: list[Example], seed: int = 0) -> LabelledRows:
        """The examples of a split in rows; raises UserError for unknown labels."""
        labels = numbers_of(given, self.classes, f"the {split} split")
        return self.rows_of([(x.text, x.second) for x in given], labels, seed)

    def rows_of(
        self, texts: Sequence[tuple[str, str | None]], labels: Sequence[float], seed: int = 0
    ) -> LabelledRows:
        data = self.data
        return LabelledRows(
            texts, labels, self.tokenizer, data.max_length, seed=seed, packing=data.packing
        )

    @functools.cached_property
    def measure(self) -> Any:
        """The jitted (params, extra, batch) -> Loss and logits [B, C, classes]."""

        def measure(bound: Any, batch: Labelled) -> tuple[Loss, jax.Array]:
            logits_BCX = bound.classify(batch)
            return bound.class_loss(logits_BCX, batch, 0.0), logits_BCX

        return evaluation_step(measure, self.model, self.mesh)

    def run(
        self,
        measure: Any,
        variables: tuple[Params, dict],
        packed: LabelledRows,
        rows: np.ndarray,
        progress: Callable[[int], None] = lambda done: None,
    ) -> tuple[list[Loss], np.ndarray]:
        """Runs `measure` on all batches; returns their losses, and an output for each example.

        Outputs are probabilities [N, classes], or numbers for a regression.
        """
        losses, done = [], 0
        found_NX = np.zeros((len(packed.lengths), len(self.labels)))
        for numbers, batch in zip(rows, batches(packed, rows, self.mesh), strict=True):
            loss, logits_BCX = jax.device_get(measure(*variables, batch))
            losses.append(loss)
            numbers_BC = packed.lay_out(numbers).numbers_BC
            is_real_BC = numbers_BC >= 0
            found_NX[numbers_BC[is_real_BC]] = logits_BCX[is_real_BC]
            done += int(is_real_BC.sum())
            progress(done)
        if not self.is_regression:
            shifted_NX = np.exp(found_NX - found_NX.max(axis=1, keepdims=True))
            found_NX = shifted_NX / shifted_NX.sum(axis=1, keepdims=True)
        return losses, found_NX

    def outputs(self, found_NX: np.ndarray) -> list[str]:
        """The label of each example."""
        if self.is_regression:
            return [f"{x:.6g}" for x in found_NX[:, 0]]
        return [self.labels[i] for i in found_NX.argmax(axis=1)]

    def classify(
        self, params: Params, extra: dict, texts: Sequence[tuple[str, str | None]]
    ) -> list[dict[str, Any]]:
        """`label` and `probabilities` of each text or pair; `number` for a regression."""
        packed = self.rows_of(texts, [0.0] * len(texts))
        _, found_NX = self.run(
            self.measure, (params, extra), packed, rows_to_evaluate(packed, self.mesh)
        )
        if self.is_regression:
            return [{"number": float(x)} for x in found_NX[:, 0]]
        return [
            {"label": label, "probabilities": dict(zip(self.labels, map(float, x), strict=True))}
            for label, x in zip(self.outputs(found_NX), found_NX, strict=True)
        ]

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        with distributed.first_alone():
            given = read_examples(self.data, split)
        packed = self.rows(split, given)

        def told(done: int) -> None:
            progress(done, len(given))

        _, found_NX = self.run(
            self.measure, (params, extra), packed, rows_to_evaluate(packed, self.mesh), told
        )
        texts = {
            "sources": [" ||| ".join(x for x in e[:2] if x is not None) for e in given],
            "references": [example.label for example in given],
            "hypotheses": self.outputs(found_NX),
            "probabilities": [" ".join(f"{x:.6f}" for x in row) for row in found_NX],
        }
        scores = scores_of(self.data, texts["hypotheses"], texts["references"])
        return Outputs(texts, scores, examples(texts))


def scores_of(data: LabelledData, hypotheses: list[str], references: list[str]) -> dict[str, dict]:
    return (number_scores if data.regression else class_scores)(hypotheses, references)


def batches(packed: LabelledRows, rows: np.ndarray, mesh: jax.sharding.Mesh) -> Iterator[Labelled]:
    """The batches of `evaluation_rows` on the devices."""
    for numbers in rows:
        yield distribute(packed.labelled, numbers, split_rows(mesh, axis=0))


class ClassificationTraining:
    """A model and its examples, packed into the rows of batches over a mesh."""

    def __init__(
        self,
        config: Any,  # a Config
        mesh: jax.sharding.Mesh,
        task: Classification,
        training: TrainingBatches,
        given: dict[str, list[Example]],
        data_id: str,
    ):
        self.training = config.training
        self.mesh = mesh
        self.task = task
        self.batches = training
        self.packed: LabelledRows = training.packed
        self.given = given
        self.validation = task.rows("validation", given["validation"])
        self.validation_rows = evaluation_rows(
            self.validation, training.layout.rows_per_step, row_shards(mesh)
        )
        self.data_id = data_id
        self.num_tokens = self.packed.num_tokens
        lengths = self.packed.lengths
        flops = config.family.flops
        sizes = sizes_of(config, task.tokenizer, task.classes)
        self.flops = float(flops(config.model, sizes, lengths, np.zeros_like(lengths)).sum())

    def batch(self, number: int) -> tuple[Labelled, int]:
        rows = self.batches.rows(number)
        batch = distribute(self.packed.labelled, rows, split_rows(self.mesh, axis=1))
        return batch, self.packed.num_tokens_of(rows)

    def make_step(self, optimizer):
        return make_train_step(self.task.model, optimizer, self.training, self.mesh)

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        batch = next(batches(self.validation, self.validation_rows[:1], self.mesh))
        self.measure = self.task.measure.lower(state.params, state.extra, batch).compile()
        jax.block_until_ready(self.measure(state.params, state.extra, batch))
        return {"validation step": self.measure}

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        del full  # validation has no further metrics
        losses, found_NX = self.task.run(
            self.measure,
            (state.params, state.extra),
            self.validation,
            self.validation_rows,
            lambda done: check(),
        )
        references = [example.label for example in self.given["validation"]]
        scores = scores_of(self.task.data, self.task.outputs(found_NX), references)
        found = {"nll": mean_nll(losses)} | {n: x["score"] for n, x in scores.items()}
        return found, Examples()

    def examples(self, number: int) -> list[dict[str, Any]]:
        return [
            {"example": int(i), **self.given["train"][i]._asdict()}
            for i in self.packed.pairs_of(self.batches.rows(number).ravel())
        ]

    def facts(self) -> Facts:
        counts = {
            "training examples": len(self.given["train"]),
            "cut, since they are too long": self.packed.num_cut,
            "validation examples": len(self.given["validation"]),
            "vocabulary": self.task.tokenizer.vocab_size,
        }
        labels = collections.Counter(example.label for example in self.given["train"])
        if not self.task.is_regression:
            counts |= {f"label {label}": count for label, count in labels.most_common()}
        return Facts(counts, {"tokens of an example": np.bincount(self.packed.lengths).tolist()})


def sizes_of(config: Any, tokenizer: WordPiece, classes: list[str] | None) -> Sizes:
    length = config.data.max_length
    return Sizes(tokenizer.vocab_size, len(classes or ["number"]), False, length, length)


def prepare(
    config: Any, mesh: jax.sharding.Mesh, workdir: Path, begun_with: Any
) -> ClassificationTraining:
    """See Task. Examples -> vocabulary -> sequences -> packed rows."""
    check_model(config, ("classification",))
    data, seed = config.data, config.training.seed
    measured = NUMBER_METRICS if data.regression else CLASS_METRICS
    if config.training.best_metric not in measured:
        raise UserError(
            f"training.best_metric is {config.training.best_metric!r}, and data.regression is "
            f"{data.regression}; give one of: {', '.join(measured)}"
        )
    with distributed.first_alone():
        given = {split: read_examples(data, split) for split in ("train", "validation")}
        tokenizer = get_tokenizer(
            config,
            workdir,
            begun_with,
            lambda: (text for x in given["train"] for text in x[:2] if text),
        )
    classes = None if data.regression else classes_of(given["train"], "the train split")
    model = build_model(proven(config.model, mesh), sizes_of(config, tokenizer, classes))
    task = Classification(config, tokenizer, classes, model, mesh)
    packed = task.rows("train", given["train"], seed)

    training = training_batches(config, packed, mesh)
    print(
        f"data     {len(given['train'])} examples, {packed.num_cut} of them cut to "
        f"{data.max_length} tokens; {'numbers' if classes is None else f'{len(classes)} classes'}"
    )
    hashes = [examples_sha256(part) for part in given.values()]
    hashes += [tokenizer.sha256, training.fingerprint]
    data_id = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return ClassificationTraining(config, mesh, task, training, given, data_id)


def restore(config: Any, workdir: Path) -> Classification:
    """See Task."""
    tokenizer = WordPiece.load(workdir, workdir)
    classes = read_classes(workdir / LABELS, list[str] | None)
    model = build_model(config.model, sizes_of(config, tokenizer, classes))
    return Classification(config, tokenizer, classes, model, data_mesh())


def content_sha256(data: LabelledData, split: str) -> str:
    """See Task."""
    return examples_sha256(read_examples(data, split))


def rescore(data: LabelledData, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """See Task."""
    references = [example.label for example in read_examples(data, split)]
    return scores_of(data, hypotheses, references)


CLASS_METRICS = ("accuracy", "f1", "matthews", "nll")
NUMBER_METRICS = ("spearman", "pearson", "nll")

TASK = Task(
    sections={"data": LabelledData, "tokenizer": WordPieceConfig},
    metrics={
        name: Metric("lower" if name == "nll" else "higher")
        for name in dict.fromkeys((*CLASS_METRICS, *NUMBER_METRICS))
    },
    main_metric="accuracy",
    prepare=prepare,
    restore=restore,
    files=(*FILES, LABELS),
    ensemble=no_ensemble,
    content_sha256=content_sha256,
    rescore=rescore,
    pretrained=pretrained_bert.read,
)
