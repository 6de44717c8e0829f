"""What is learned from what: the seam between a run and its data.

A task gives the run its batches, its training step and its validation. The run knows no more of
it than this file says.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import jax
import optax

from transformer.data.pictures import Picture
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

# What a CPU takes at once unless the config says: where it was measured (docs/performance.md),
# more was slower, and it needs more memory.
CPU_TOKENS = 2048


def tokens_at_once(most: int, mesh: jax.sharding.Mesh) -> int:
    """How many tokens each device takes at once; 0: all. most: training.max_tokens_per_device."""
    return CPU_TOKENS if most == 0 and mesh.devices.flat[0].platform == "cpu" else most


class Metric(NamedTuple):
    """A number that validation yields."""

    better: Literal["lower", "higher"]
    full: bool = False  # only full validation yields it: see training.full_validation_every

    def is_better(self, score: float, than: float) -> bool:
        return score < than if self.better == "lower" else score > than


class Outputs(NamedTuple):
    """What a model makes of a split, and how good that is.

    texts: by name, one line an example; `hypotheses` among them.
    scores: by metric, a dict with `score` and with `signature` or `definition`, and with
      `needs_model` if the hypotheses alone do not tell the score. Those of process 0 count.
    examples: a few of the texts, for people to read.
    files: what else is written beside the texts, by file name.
    """

    texts: dict[str, list[str]]
    scores: dict[str, dict[str, Any]]
    examples: str
    files: Mapping[str, bytes] = {}


class Examples(NamedTuple):
    """What a validation shows: text, and pictures by name."""

    text: str = ""
    pictures: Mapping[str, Picture] = {}


class Facts(NamedTuple):
    """What a run learns from, for people to read; WORKDIR/data.json has it.

    counts: by what is counted, in words.
    lengths: of each kind of sequence, how many have 0, 1, 2, ... tokens.
    """

    counts: dict[str, int]
    lengths: dict[str, list[int]]


FACTS = "data.json"


class TrainedTask(Protocol):
    """A model with all that it needs to be used."""

    model: FunctionalModel
    data: Any  # the data section of its config
    classes: list[str] | None  # the names of those that Family.class_axes speaks of

    def save(self, workdir: Path) -> None:
        """Writes what a work directory needs beside config and parameters, such as tokenizers."""

    def provenance(self) -> dict[str, Any]:
        """How outputs are made from parameters, for scores.json."""

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        """Outputs for a whole split; `progress` is told how many examples are done, of how many."""


class TrainingTask(Protocol):
    """A model and its data, laid out over a mesh."""

    task: TrainedTask
    data_id: str  # a hash of all examples that the run sees, in their order
    num_tokens: int  # of all training examples
    flops: float  # to train on each training example once

    def batch(self, number: int) -> tuple[Any, int]:
        """A batch on the devices, a function of (seed, number) alone; how many tokens it has."""

    def make_step(self, optimizer: optax.GradientTransformationExtraArgs) -> Any:
        """The jitted update: (TrainState, batch) -> (TrainState, StepMetrics)."""

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        """Compiles what validation needs and runs it once, the largest first."""

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        """Metrics, and examples for people to read; `check` is called often, and may raise."""

    def norms(self, state: TrainState, number: int) -> dict[str, dict[str, float]]:
        """Of each layer the norms of its parameters and of the gradient of a batch."""

    def examples(self, number: int) -> list[dict[str, Any]]:
        """What is in a batch, for people to read."""

    def facts(self) -> Facts:
        """Of its data and vocabulary."""


def one_optimizer(config: Any, schedule: Callable) -> optax.GradientTransformationExtraArgs:
    return make_optimizer(config.optimizer, schedule)


class Pretrained(NamedTuple):
    """A model from elsewhere that a run can begin with.

    config: that of the run, with the sizes of this model. task: has `model`, and what the model
    needs to be begun with.
    """

    config: Any
    task: Any
    params: Params


class Task(NamedTuple):
    """An entry of the registry.

    sections: the dataclasses of those sections of a config that are the task's own.
    metrics: what validation yields; full validation yields all of them.
    main_metric: the one that chooses between checkpoints for a recorded result.
    prepare: (config, mesh, workdir, begun_with) reads the data and builds the model. begun_with is
      the TrainedTask of training.init_from, or None. Nothing is written to the work directory.
    restore: (config, workdir) gives the TrainedTask of a work directory.
    files: all that `restore` may read there; runs/integrity.py seals them.
    ensemble: several TrainedTasks as one, whose parameters and extra state are lists of theirs.
    content_sha256: (data section, split) gives a hash of a split's examples.
    rescore: (data section, split, hypotheses) gives their scores, as Outputs has them, but for
      those that need the model.
    pretrained: (folder, config) reads a folder of Hugging Face's hub that training.init_from names;
      None where there is no such model for the task.
    make_optimizer: (config, schedule) gives what make_step takes; optimizers.make_optimizer, but
      for a task with several optimizers.
    check_scores: raises UserError if the TrainedTask lacks what scores need beside its data.
    other_use: a script, and flags beside --workdir, for a run that cannot be scored.
    shown: the metrics of training, without their "train/", that the progress bar shows.
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


def read_classes(path: Path, kind: Any) -> Any:
    """The classes in a file of a work directory, of a type; raises UserError if it is not whole."""
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
    """Cross-entropy in nats per token, of the `Loss` of each batch of a split."""
    losses = jax.device_get(losses)
    return sum(float(x.nll) for x in losses) / sum(int(x.tokens) for x in losses)
