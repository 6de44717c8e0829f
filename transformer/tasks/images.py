"""Image generation by class: a generator and a discriminator trained together (SAGAN)."""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.batches import Layout, TrainingBatches
from transformer.data.labelled_images import (
    ImageData,
    ImageSet,
    check_memory,
    content_sha256,
    labels_as,
    read_images,
)
from transformer.data.labelled_images import Shape as ImageShape
from transformer.data.pictures import picture
from transformer.data.rows import SingleRows
from transformer.metrics.image_scores import compare
from transformer.models.family import Sizes, build_model
from transformer.models.sagan.sagan import multiplications
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, distribute, row_shards, split_rows
from transformer.tasks.encoders import no_ensemble
from transformer.tasks.feature_classifier import how_to_train_one
from transformer.tasks.image_generation import (
    CLASSES,
    ImageGenerator,
    ImagesConfig,
    Ready,
)
from transformer.tasks.task import (
    Examples,
    Facts,
    Metric,
    Task,
    TrainingTask,
    check_family,
    data_id,
    needs_model,
    read_classes,
)
from transformer.training.adversarial import (
    ImageBatch,
    make_adversarial_step,
)
from transformer.training.optax_names import is_schedule_free
from transformer.training.optimizers import by_part, make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import TrainState

FIRST_UPDATES = 10  # updates whose order enters the hash of the data


class ImageTraining(TrainingTask):
    """Both networks and their training images, over a mesh."""

    def __init__(
        self,
        config: Any,  # a Config
        mesh: jax.sharding.Mesh,
        task: ImageGenerator,
        training: ImageSet,
        validation: ImageSet,
    ):
        self.config = config
        self.mesh = mesh
        self.task = task
        self.images = training
        self.validation = validation
        steps, images = config.task.discriminator_steps, config.training.tokens_per_update
        self.order = TrainingBatches(
            SingleRows(len(training.labels_N)),
            Layout(images, steps, images // steps),
            config.training.seed,
        )
        plan = np.stack([self.order.rows(k) for k in range(FIRST_UPDATES)])
        hashes = [training.sha256, validation.sha256, plan.astype("<i8").tobytes().hex()]
        self.data_id = data_id(*hashes)
        self.num_tokens = len(training.labels_N)
        generator, discriminator = multiplications(config.model)
        once = generator + 6 * discriminator + (3 * generator + 2 * discriminator) / steps
        self.flops = 2.0 * once * self.num_tokens
        self._reference: np.ndarray | None = None  # features of real images

    def batch(self, number: int) -> tuple[ImageBatch, int]:
        rows = self.order.rows(number)

        def make(rows_AB: np.ndarray) -> ImageBatch:
            labels = self.images.labels_N[rows_AB].astype(np.int32)
            return ImageBatch(self.images.images_NHWC[rows_AB], labels)

        return distribute(make, rows, split_rows(self.mesh, axis=1)), rows.size

    def make_step(self, optimizer):
        return make_adversarial_step(
            self.task.model,
            optimizer,
            self.config.training,
            self.config.task,
            (self.task.noise_size, len(self.task.classes)),
            self.config.data.flip,
            self.mesh,
        )

    def prepare(self, state: TrainState) -> dict[str, jax.stages.Compiled]:
        """Runs everything once, on a batch; JAX keeps the compiled programs."""
        self.validate(state, False, lambda: None)
        task = self.task
        if self.config.training.full_validation_every:
            task.classifier.features(self.validation.images_NHWC[:1])
        (drawn,) = task.drawn(task.noise(np.arange(task.rows)), np.zeros(task.rows, int))
        return {"generator": task.generate.lower(state.params, state.extra, drawn).compile()}

    def validate(
        self, state: TrainState, full: bool, check: Callable[..., None]
    ) -> tuple[dict[str, float], Examples]:
        task, step = self.task, int(state.step)
        ready = task.ready(state.params, state.extra)
        check()

        # 1. The discriminator, on images it has not seen. Shuffled: folders list them by class.
        order = np.random.default_rng(0).permutation(len(self.validation.labels_N))
        seen = self.validation.take(np.resize(order, task.rows))
        made = task.images(ready, task.noise(np.arange(task.rows)), seen.labels_N)
        logits = [task.logits(state, images, seen.labels_N) for images in (seen.images_NHWC, made)]
        found = {
            # training/adversarial.py:discriminator_loss, with no program to compile.
            "discriminator_loss": float(
                np.maximum(1 - logits[0], 0).mean() + np.maximum(1 + logits[1], 0).mean()
            ),
            "real_logit": float(logits[0].mean()),
            "fake_logit": float(logits[1].mean()),
        }
        check()

        # 2. The images.
        if full:
            found |= self.scores(ready, check)
        every = self.config.task.samples_every
        if every and step % every == 0:
            return found, Examples("", {"samples": picture(task.samples(ready))})
        return found, Examples()

    def scores(self, ready: Ready, check: Callable[..., None]) -> dict[str, float]:
        features = self.task.classifier.features
        if self._reference is None:
            reference, _ = self.task.halves(self.validation)
            self._reference = features(reference.images_NHWC, check)
        made, _ = self.task.made(ready, len(self._reference), lambda done: check())
        return compare(self._reference, features(made, check))

    def facts(self) -> Facts:
        labels = collections.Counter(self.images.labels_N.tolist())
        counts = {"training images": len(self.images.labels_N)}
        counts |= {f"class {name}": labels[i] for i, name in enumerate(self.images.classes)}
        return Facts(counts, {})

    def examples(self, number: int) -> list[dict[str, Any]]:
        return [
            {"image": int(i), "class": self.task.classes[self.images.labels_N[i]]}
            for i in self.order.rows(number).ravel()
        ]


def check_config(config: Any, shards: int) -> None:
    """Raises UserError for settings that an update of two networks cannot have."""
    training, steps = config.training, config.task.discriminator_steps
    check_family(config, "sagan")
    for name in ("max_tokens_per_device", "label_smoothing"):
        if value := getattr(training, name):
            raise UserError(
                f"training.{name} is {value}, and the task images has none; set it to 0"
            )
    images = training.tokens_per_update
    if images % (steps * shards):
        raise UserError(
            f"training.tokens_per_update is {images} images; it must be a multiple of "
            f"task.discriminator_steps x the devices that share a batch, {steps} x {shards}"
        )
    every = config.task.samples_every
    if every % training.checkpoint_every:
        raise UserError(
            f"task.samples_every is {every}, which is no multiple of training.checkpoint_every = "
            f"{training.checkpoint_every}"
        )
    if training.full_validation_every and not config.task.features:
        raise UserError(
            "task.features is not given, and full validation needs a classifier; give its file, or "
            "set training.full_validation_every to 0 and training.best_metric to "
            f"'discriminator_loss'; {how_to_train_one()}"
        )


def prepare(config: Any, mesh: jax.sharding.Mesh, workdir: Path, begun_with: Any) -> ImageTraining:
    """See Task."""
    del workdir, begun_with
    check_config(config, row_shards(mesh))
    shape = ImageShape(config.model.image_size, config.model.channels)
    check_memory(config.training.tokens_per_update, shape, "training.tokens_per_update")
    with distributed.first_alone():
        training = read_images(config.data, "train", shape)
        validation = read_images(config.data, "validation", shape)
    validation = labels_as(validation, training.classes, "the validation split")
    model = build_model(config.model, sizes_of(training.classes))
    task = ImageGenerator(config, training.classes, model, mesh)
    if config.training.full_validation_every:
        _ = task.classifier  # wrong files show here
        task.halves(validation)
    made = ImageTraining(config, mesh, task, training, validation)
    print(
        f"data     {len(training.labels_N)} images of {len(training.classes)} class(es) to train "
        f"on, {len(validation.labels_N)} for validation; "
        f"{made.order.updates_per_epoch:.1f} updates an epoch"
    )
    return made


def restore(config: Any, workdir: Path) -> ImageGenerator:
    """See Task."""
    classes = read_classes(workdir / CLASSES, list[str])
    model = build_model(config.model, sizes_of(classes))
    return ImageGenerator(config, classes, model, data_mesh())


def sizes_of(classes: list[str]) -> Sizes:
    return Sizes(len(classes), len(classes), False, 1, 1)


def two_optimizers(config: Any, schedule: Callable) -> Any:
    """The optimizers of both networks; the discriminator's has a learning rate of its own."""
    rate, steps = config.task.discriminator_learning_rate, config.task.discriminator_steps
    if config.training.ema:
        raise UserError(
            f"training.ema is {config.training.ema}, and the task images averages its generator by "
            "task.average_decay; leave training.ema at 0"
        )
    if is_schedule_free(config.optimizer.name):
        raise UserError(
            f"optimizer.name is {config.optimizer.name}, which averages its parameters, and the "
            "task images plays with those of two networks; choose another optimizer"
        )
    try:
        own = {**vars(config.optimizer), "peak_learning_rate": rate}
        of_discriminator = type(config.optimizer)(**own)
    except UserError as error:
        raise UserError(
            f"task.discriminator_learning_rate is {rate}, and optimizer.schedule "
            f"{config.optimizer.schedule!r} takes no rate; choose another schedule"
        ) from error
    by_update = make_schedule(of_discriminator, None)

    def by_step(step: jax.Array) -> jax.Array:
        # Schedules count updates, and an update has several steps of the discriminator.
        return by_update(-(-jnp.asarray(step).astype(jnp.int32) // steps))

    return by_part(
        {
            "discriminator": make_optimizer(of_discriminator, by_step),
            "generator": make_optimizer(config.optimizer, schedule),
        }
    )


TASK = Task(
    sections={"task": ImagesConfig, "data": ImageData},
    metrics={
        "fid_ours": Metric("lower", full=True),
        "kid_ours": Metric("lower", full=True),
        "precision": Metric("higher", full=True),
        "recall": Metric("higher", full=True),
        "discriminator_loss": Metric("higher"),
        "real_logit": Metric("higher"),
        "fake_logit": Metric("higher"),
    },
    main_metric="fid_ours",
    prepare=prepare,
    restore=restore,
    files=(CLASSES,),
    ensemble=no_ensemble,
    content_sha256=content_sha256,
    rescore=needs_model,
    make_optimizer=two_optimizers,
    shown=("generator_loss", "discriminator_loss"),
    check_scores=lambda task: task.classifier,  # wrong files show here
    other_use=("generate", "--grid=samples.png"),
)
