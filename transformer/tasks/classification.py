"""Classification or regression of texts and pairs of texts, by an encoder with a head (BERT)."""

import collections
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data.batches import EvaluationBatches
from transformer.data.labelled import LabelledRows
from transformer.data.labelled_text import (
    Example,
    LabelledData,
    classes_of,
    examples_sha256,
    numbers_of,
    read_examples,
)
from transformer.data.sequences import Labelled
from transformer.data.wordpiece import FILES, WordPiece, WordPieceConfig
from transformer.metrics.labels import class_scores, number_scores
from transformer.models.family import Sizes, build_model
from transformer.models.functional import Params
from transformer.models.kernels import proven
from transformer.models.loss import Loss
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.sharding import data_mesh
from transformer.tasks import pretrained_bert
from transformer.tasks.encoders import (
    EncoderTask,
    check_model,
    get_tokenizer,
    no_ensemble,
)
from transformer.tasks.supervised import SupervisedTraining, training_batches
from transformer.tasks.task import Facts, Metric, Outputs, Task, examples, mean_nll, read_classes
from transformer.training.step import evaluation_step

LABELS = "labels.json"  # in a work directory


class Classification(EncoderTask):
    """A model with its vocabulary and its labels (None for a regression)."""

    @property
    def is_regression(self) -> bool:
        return self.classes is None

    @property
    def labels(self) -> list[str]:
        return self.classes or ["number"]

    def save(self, workdir: Path) -> None:
        super().save(workdir)
        write_json(workdir / LABELS, {"classes": self.classes})

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "classes": self.classes}

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

    def ordered(
        self, found: Sequence[tuple[Loss, np.ndarray]], batches: EvaluationBatches
    ) -> np.ndarray:
        """An output for each example, from what `measure` has found in the batches.

        Outputs are probabilities [N, classes], or numbers for a regression.
        """
        packed = batches.packed
        found_NX = np.zeros((len(packed.lengths), len(self.labels)))
        for number, (_, logits_BCX) in enumerate(found):
            numbers_BC = packed.lay_out(batches.rows(number)).numbers_BC
            is_real_BC = numbers_BC >= 0
            found_NX[numbers_BC[is_real_BC]] = logits_BCX[is_real_BC]
        if not self.is_regression:
            shifted_NX = np.exp(found_NX - found_NX.max(axis=1, keepdims=True))
            found_NX = shifted_NX / shifted_NX.sum(axis=1, keepdims=True)
        return found_NX

    def outputs(self, found_NX: np.ndarray) -> list[str]:
        """The label of each example."""
        if self.is_regression:
            return [f"{x:.6g}" for x in found_NX[:, 0]]
        return [self.labels[i] for i in found_NX.argmax(axis=1)]

    def classify(
        self, params: Params, extra: dict, texts: Sequence[tuple[str, str | None]]
    ) -> list[dict[str, Any]]:
        """`label` and `probabilities` of each text or pair; `number` for a regression."""
        batches = self.in_batches(self.rows_of(texts, [0.0] * len(texts)))
        found_NX = self.ordered(self.measured(params, extra, batches), batches)
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
        batches = self.in_batches(self.rows(split, given))
        found = self.measured(params, extra, batches, lambda done: progress(done, len(given)))
        found_NX = self.ordered(found, batches)
        texts = {
            "sources": [" ||| ".join(x for x in e[:2] if x is not None) for e in given],
            "references": [example.label for example in given],
            "hypotheses": self.outputs(found_NX),
            "probabilities": [" ".join(f"{x:.6f}" for x in row) for row in found_NX],
        }
        scores = self.scores_of(self.data, texts["hypotheses"], given)
        return Outputs(texts, scores, examples(texts))

    @staticmethod
    def check_config(config: Any) -> None:
        """Raises UserError for a metric of classes in a regression, or the reverse."""
        measured = NUMBER_METRICS if config.data.regression else CLASS_METRICS
        if config.training.best_metric not in measured:
            raise UserError(
                f"training.best_metric is {config.training.best_metric!r}, and data.regression is "
                f"{config.data.regression}; give one of: {', '.join(measured)}"
            )

    @staticmethod
    def scores_of(
        data: LabelledData, hypotheses: Sequence[str], given: Sequence[Example]
    ) -> dict[str, dict[str, Any]]:
        """Scores of the outputs for these examples, in the form of Outputs.scores."""
        score = number_scores if data.regression else class_scores
        return score(hypotheses, [example.label for example in given])


class ClassificationTraining(SupervisedTraining):
    """A model and its examples."""

    given: dict[str, list[Example]]  # of each split

    def metrics(self, found: list[tuple[Loss, np.ndarray]]) -> dict[str, float]:
        outputs = self.task.outputs(self.task.ordered(found, self.validation))
        scores = self.task.scores_of(self.task.data, outputs, self.given["validation"])
        nll = mean_nll([loss for loss, _ in found])
        return {"nll": nll} | {name: x["score"] for name, x in scores.items()}

    def shown(self, number: int) -> dict[str, Any]:
        return {self.kind: number, **self.given["train"][number]._asdict()}

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
    config: Any,
    mesh: jax.sharding.Mesh,
    workdir: Path,
    begun_with: Any,
    kind: type[Classification] = Classification,
) -> ClassificationTraining:
    """See Task. Examples -> vocabulary -> sequences -> packed rows. kind: the class of the task."""
    check_model(config, ("classification",))
    kind.check_config(config)
    data, seed = config.data, config.training.seed
    with distributed.first_alone():
        given = {split: read_examples(data, split) for split in ("train", "validation")}
        tokenizer = get_tokenizer(
            config,
            workdir,
            begun_with,
            lambda: (text for x in given["train"] for text in x[:2] if text),
        )
    classes = None if data.regression else classes_of(given["train"], "the train split")
    sizes = sizes_of(config, tokenizer, classes)
    model = build_model(proven(config.model, mesh), sizes)
    task = kind(config, tokenizer, model, mesh, classes)
    packed = task.rows("train", given["train"], seed)

    training = training_batches(config, packed, mesh, f"{data.max_length}")
    print(
        f"data     {len(given['train'])} examples, {packed.num_cut} of them cut to "
        f"{data.max_length} tokens; {'numbers' if classes is None else f'{len(classes)} classes'}"
    )
    held_out = task.rows("validation", given["validation"])
    held_out = task.in_batches(held_out, training.layout.rows_per_step)
    hashes = [*map(examples_sha256, given.values()), tokenizer.sha256]
    made = ClassificationTraining(config, task, training, held_out, sizes, hashes)
    made.given = given
    return made


def restore(
    config: Any, workdir: Path, kind: type[Classification] = Classification
) -> Classification:
    """See Task; kind as in `prepare`."""
    tokenizer = WordPiece.load(workdir, workdir)
    classes = read_classes(workdir / LABELS, list[str] | None)
    model = build_model(config.model, sizes_of(config, tokenizer, classes))
    return kind(config, tokenizer, model, data_mesh(), classes)


def content_sha256(data: LabelledData, split: str) -> str:
    """See Task."""
    return examples_sha256(read_examples(data, split))


def rescore(
    data: LabelledData,
    split: str,
    hypotheses: list[str],
    kind: type[Classification] = Classification,
) -> dict[str, dict[str, Any]]:
    """See Task; kind as in `prepare`."""
    return kind.scores_of(data, hypotheses, read_examples(data, split))


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
