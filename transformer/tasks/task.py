"""The seam between a run and its data.

A task gives the run its batches, its training step and its validation. The run relies on nothing
else of a task than this file describes.
"""

import abc
import dataclasses
import functools
import hashlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import jax
import optax

from transformer.data.pictures import Picture
from transformer.data.test_sets import TestSet
from transformer.models.functional import FunctionalModel, Params
from transformer.system.errors import UserError
from transformer.system.reading import MISSING, read_json
from transformer.training.optimizers import make_optimizer
from transformer.training.step import TrainState

# Modules of transformer.tasks; each has a TASK.
TASKS = (
    *("seq2seq", "transduction", "question_answering", "summarization", "language_model"),
    *("masked_lm", "classification", "parsing", "images"),
)

# The default for a CPU: where it was measured (docs/performance.md), more tokens at once were
# slower, and need more memory.
CPU_TOKENS = 2048


def tokens_at_once(most: int, mesh: jax.sharding.Mesh) -> int:
    """Tokens that each device takes at once; 0: all. most: training.max_tokens_per_device."""
    return CPU_TOKENS if most == 0 and mesh.devices.flat[0].platform == "cpu" else most


class Metric(NamedTuple):
    """A number that validation yields."""

    better: Literal["lower", "higher"]
    full: bool = False  # only full validation yields it: see training.full_validation_every

    def is_better(self, score: float, than: float) -> bool:
        return score < than if self.better == "lower" else score > than


class Outputs(NamedTuple):
    """A model's outputs for a split, and their scores.

    texts: by name, one line an example; `hypotheses` among them.
    scores: by metric, a dict with `score` and with `signature` or `definition`, and with
      `needs_model` if the score needs more than the hypotheses. Those of process 0 count.
    examples: a few of the texts, for people to read.
    files: further files to write beside the texts, by file name.
    """

    texts: dict[str, list[str]]
    scores: dict[str, dict[str, Any]]
    examples: str
    files: Mapping[str, bytes] = {}


class Examples(NamedTuple):
    """The examples that a validation shows: text, and pictures by name."""

    text: str = ""
    pictures: Mapping[str, Picture] = {}


class Facts(NamedTuple):
    """The data of a run, for people to read; WORKDIR/data.json has it.

    counts: by description of the thing counted.
    lengths: for each kind of sequence, how many have 0, 1, 2, ... tokens.
    """

    counts: dict[str, int]
    lengths: dict[str, list[int]]


FACTS = "data.json"


class TrainedTask(Protocol):
    """A model with everything needed to use it."""

    model: FunctionalModel
    data: Any  # the data section of its config
    classes: list[str] | None  # the classes along the axes of Family.class_axes

    def save(self, workdir: Path) -> None:
        """Writes what a work directory needs beside config and parameters, such as tokenizers."""

    def provenance(self) -> dict[str, Any]:
        """The settings that turn parameters into outputs, for scores.json."""

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        """Outputs for a whole split; `progress` is called with examples done and their total."""


class TrainingTask(abc.ABC):
    """A model and its data, laid out over a mesh. The last two methods are optional."""

    task: TrainedTask
    data_id: str  # a hash of all training examples in their order
    num_tokens: int  # of all training examples
    flops: float  # to train on each training example once

    @abc.abstractmethod
    def batch(self, number: int) -> tuple[Any, int]:
        """A batch on the devices, and its tokens; depends only on (seed, number)."""

    @abc.abstractmethod
    def make_step(self, optimizer: optax.GradientTransformationExtraArgs) -> Any:
        """The jitted update: (TrainState, batch) -> (TrainState, StepMetrics)."""

    @abc.abstractmethod
    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        """Compiles the programs of validation and runs each once, the largest first."""

    @abc.abstractmethod
    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        """Metrics, and examples for people to read; `check` is called often, and may raise."""

    def examples(self, number: int) -> list[dict[str, Any]]:
        """The examples in a batch, for people to read."""
        return []

    def facts(self) -> Facts:
        """The facts of its data and vocabulary."""
        return Facts({}, {})


def of_kind(kind: type, *functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Functions of a module as entries of a Task, for the class that is their argument `kind`."""
    return {function.__name__: functools.partial(function, kind=kind) for function in functions}


def data_id(*hashes: str) -> str:
    """A hash of the hashes of all that the data of a run depend on."""
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def one_optimizer(config: Any, schedule: Callable) -> optax.GradientTransformationExtraArgs:
    return make_optimizer(config.optimizer, schedule)


class Pretrained(NamedTuple):
    """A model from elsewhere that a run can begin with.

    config: the run's, with the sizes of this model. task: has `model`, and everything that a run
    needs to begin with it. read_params: reads the parameters; UserError if they do not fit.
    """

    config: Any
    task: Any
    read_params: Callable[[], Params]


def check_hub_family(folder: Path, config: Any, family: str) -> None:
    """Raises UserError if a run's model is of another family than that of a hub folder."""
    if config.model.family != family:
        raise UserError(
            f"{folder} holds a model of Hugging Face's, and model.family is "
            f"{config.model.family!r}; a run of the family {family!r} can begin with it"
        )


def with_architecture(base: Any, fields: Mapping[str, Any]) -> Any:
    """The model section `base` with these fields; others of the architecture get their defaults."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(base)
        if field.default is not dataclasses.MISSING and field.metadata.get("architecture", True)
    }
    return dataclasses.replace(base, **defaults | dict(fields))


class Task(NamedTuple):
    """An entry of the registry.

    sections: the dataclasses of the task's own config sections.
    metrics: the metrics of validation; full validation yields all of them.
    main_metric: the one that chooses between checkpoints for a recorded result.
    prepare: (config, mesh, workdir, begun_with) reads the data and builds the model. begun_with is
      the TrainedTask of training.init_from, or None. Nothing is written to the work directory.
    restore: (config, workdir) returns the TrainedTask of a work directory.
    files: all that `restore` may read there; runs/integrity.py seals them.
    ensemble: several TrainedTasks as one, whose parameters and extra state are lists of theirs.
    content_sha256: (data section, split) returns a hash of a split's examples.
    rescore: (data section, split, hypotheses) returns their scores in the form of Outputs.scores,
      except those that need the model.
    score_test_set: (the settings of corpus_scores, TestSet, hypotheses) returns Outputs; None if
      the task has no test sets beside its splits. If it has, its TrainedTask has `translate` and
      `check_data`, as Seq2Seq has.
    pretrained: (folder, config) reads a folder of Hugging Face's hub that training.init_from names;
      None if the task has no such models.
    make_optimizer: (config, schedule) returns the optimizer for make_step;
      optimizers.make_optimizer, except for a task with several optimizers.
    check_scores: raises UserError if the TrainedTask lacks files that scores need beside its data.
    other_use: a command, and flags beside --workdir, for a run that cannot be scored.
    shown: the training metrics in the progress bar, without their "train/".
    """

    sections: Mapping[str, type]
    metrics: Mapping[str, Metric]
    main_metric: str
    prepare: Callable[..., TrainingTask]
    restore: Callable[..., TrainedTask]
    files: tuple[str, ...]
    ensemble: Callable[..., TrainedTask]
    content_sha256: Callable[[Any, str], str]
    rescore: Callable[[Any, str, list[str]], dict[str, dict[str, Any]]]
    score_test_set: Callable[[Mapping[str, Any], TestSet, list[str]], Outputs] | None = None
    pretrained: Callable[[Path, Any], Pretrained] | None = None
    make_optimizer: Callable[..., optax.GradientTransformationExtraArgs] = one_optimizer
    check_scores: Callable[[Any], None] = lambda task: None
    other_use: tuple[str, ...] | None = None
    shown: tuple[str, ...] = ("loss",)


def find_task(name: str) -> Task:
    """The task of that name; raises UserError if there is none."""
    if name not in TASKS:
        raise UserError(f"task.name is {name!r:.60}; it must be one of: {', '.join(TASKS)}")
    return importlib.import_module(f"transformer.tasks.{name}").TASK


def check_family(config: Any, family: str) -> None:
    """Raises UserError if the model of a Config is of another family than its task needs."""
    if config.model.family != family:
        raise UserError(
            f"task.name is {config.task.name!r}, which needs model.family {family!r}; it is "
            f"{config.model.family!r}"
        )


def from_model(
    scores: Mapping[str, float], definitions: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Scores that need more than the hypotheses, in the form of Outputs.scores."""
    return {
        name: {"score": score, "definition": definitions[name], "needs_model": True}
        for name, score in scores.items()
    }


def needs_model(data: Any, split: str, hypotheses: list[str]) -> dict[str, dict[str, Any]]:
    """Task.rescore of a task whose scores all need the model."""
    return {}


def read_classes(path: Path, kind: Any) -> Any:
    """The classes in a work directory's file, of type `kind`; raises UserError if it is damaged."""
    try:
        classes = read_json(path, path.parent, TypedDict("Classes", {"classes": kind}))["classes"]
    except MISSING as error:
        raise UserError(f"{path} is missing; restore it") from error
    if classes is not None and len(set(classes)) != (len(classes) or 1):
        raise UserError(f"{path} is damaged (no classes, or one of them twice); restore it")
    return classes


def examples(columns: Mapping[str, list[str]], count: int = 3) -> str:
    """A few examples spread over a split, one block each, with a line for each column."""
    size = len(next(iter(columns.values())))
    step = max(1, size // count)
    width = max(map(len, columns))
    blocks = [
        "\n".join(f"  {name:{width}}  {lines[i]}" for name, lines in columns.items())
        for i in range(step // 2, size, step)
    ]
    return "\n\n".join(blocks[:count])


def mean_nll(losses: list[Any]) -> float:
    """Cross-entropy in nats per token, from the `Loss` of each batch of a split."""
    losses = jax.device_get(losses)
    return sum(float(x.nll) for x in losses) / sum(int(x.tokens) for x in losses)
