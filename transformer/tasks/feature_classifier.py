"""A small image classifier whose hidden values are the features of FID-ours and KID-ours.

The letters are those of models/sagan/spectral.py; D is the number of features.
"""

import functools
import hashlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from transformer.data.labelled_images import Shape, labels_as, read_images
from transformer.models.functional import FunctionalModel, Params
from transformer.models.sagan.image_convolution import convolve, halve
from transformer.system.commands import command
from transformer.system.compilation import convolution_options
from transformer.system.errors import UserError
from transformer.system.files import write_named
from transformer.system.paths import cannot_read
from transformer.system.reading import MOST, Count, parse_json, read_plain

WIDTHS = (32, 64, 128, 128)  # channels of each layer; the last are the features
BATCH = 100


class FeatureNetwork(nnx.Module):
    """Layers of convolution, channel normalisation, ReLU and halving; then their spatial mean."""

    def __init__(self, channels: int, num_classes: int, rngs: nnx.Rngs):
        he, widths = nnx.initializers.he_normal(), (channels, *WIDTHS)
        self.kernels = nnx.List(
            nnx.Param(he(rngs.params(), (3, 3, I, O)))
            for I, O in zip(widths, WIDTHS)  # noqa: E741
        )
        self.scales = nnx.List(nnx.Param(jnp.ones(O)) for O in WIDTHS)  # noqa: E741
        self.shifts = nnx.List(nnx.Param(jnp.zeros(O)) for O in WIDTHS)  # noqa: E741
        self.output_DN = nnx.Param(jnp.zeros((WIDTHS[-1], num_classes)))

    def features(self, images_BHWC: jax.Array) -> jax.Array:
        """Features [B, D] of images in bytes."""
        x = images_BHWC.astype(jnp.float32) / 127.5 - 1
        for kernel, scale_C, shift_C in zip(self.kernels, self.scales, self.shifts):
            x = convolve(x, kernel[...], jnp.float32)
            x = jax.nn.standardize(x, axis=-1, epsilon=1e-5)
            x = x * scale_C[...].reshape(1, 1, 1, -1) + shift_C[...].reshape(1, 1, 1, -1)
            x = halve(jax.nn.relu(x))
        return jnp.mean(x, axis=(1, 2))

    def logits(self, images_BHWC: jax.Array) -> jax.Array:
        return self.features(images_BHWC) @ self.output_DN[...]


class About(NamedTuple):
    """The facts recorded with a trained classifier."""

    size: Count
    channels: Count
    classes: list[str]
    accuracy: float  # per cent, on held-out images
    held_out: Count  # number of held-out images
    data_sha256: str
    epochs: Count
    seed: int


class FeatureClassifier:
    def __init__(self, params: Params, about: About, sha256: str):
        """sha256: hash of the file that holds it."""
        self.params, self.about, self.sha256 = params, about, sha256
        self._model = model_of(about.channels, len(about.classes))

    @property
    def words(self) -> str:
        return (
            f"features of our classifier {self.sha256[:12]} "
            f"(accuracy {self.about.accuracy:.1f} on {self.about.held_out} images)"
        )

    def check(self, shape: Shape, path: Path) -> None:
        if (self.about.size, self.about.channels) != shape:
            raise UserError(
                f"{path} was trained on images of {self.about.size} x {self.about.size} pixels "
                f"and {self.about.channels} channel(s), and the model makes {shape.size} x "
                f"{shape.size} and {shape.channels}; train one on such images"
            )

    @functools.cached_property
    def _features(self) -> Any:
        return jax.jit(lambda params, x: self._model.bind(params).features(x))

    def features(
        self, images_NHWC: np.ndarray, check: Callable[..., None] = lambda: None
    ) -> np.ndarray:
        """Features [N, D]; `check` is called after each batch."""
        found = []
        for batch, count in batches_of(images_NHWC):
            found.append(np.asarray(self._features(self.params, batch))[:count])
            check()
        return np.concatenate(found)

    @classmethod
    def load(cls, path: Path) -> "FeatureClassifier":
        try:
            content = read_plain(path, None)
            with np.load(io.BytesIO(content)) as file:
                if sum(entry.file_size for entry in file.zip.infolist()) > MOST:
                    raise ValueError("its arrays are too large")
                about = About(**parse_json(str(file["about"]), About))
                model = model_of(about.channels, len(about.classes))
                leaves, tree = jax.tree.flatten(model.abstract_params())
                arrays = [file[f"array_{i}"] for i in range(len(leaves))]
            if [a.shape for a in arrays] != [x.shape for x in leaves]:
                raise ValueError("its arrays have other shapes than the classifier's")
        except UserError:
            raise
        except OSError as error:
            advice = f"; give the file of a classifier; {how_to_train_one()}"
            raise cannot_read(path, error, advice=advice) from error
        except Exception as error:  # zipfile and zlib have exceptions of their own
            raise UserError(f"{path} is no classifier, or is damaged ({error})") from error
        return cls(jax.tree.unflatten(tree, arrays), about, hashlib.sha256(content).hexdigest())

    @staticmethod
    def save(path: Path, params: Params, about: About) -> None:
        arrays = {f"array_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(params))}
        file = io.BytesIO()
        np.savez(file, about=np.array(json.dumps(about._asdict())), **arrays)
        write_named(path, file.getvalue())


def how_to_train_one() -> str:
    return f"{command('feature-classifier', '--help')} says how to train one"


def model_of(channels: int, num_classes: int) -> FunctionalModel:
    return FunctionalModel(lambda rngs: FeatureNetwork(channels, num_classes, rngs))


def batches_of(images_NHWC: np.ndarray):
    """Batches of BATCH images, the last filled up, each with its number of real images."""
    for i in range(0, len(images_NHWC), BATCH):
        part = images_NHWC[i : i + BATCH]
        missing = BATCH - len(part)
        yield np.pad(part, ((0, missing), (0, 0), (0, 0), (0, 0))), len(part)


def train_classifier(config: Any, epochs: int, seed: int) -> tuple[Params, About]:
    """Trains on the images that a run with this Config would train on; prints each epoch.

    By Adam with a cosine schedule, on images and their mirror images. Its accuracy is that on the
    run's validation images. Raises UserError if there is but one class.
    """
    shape = Shape(config.model.image_size, config.model.channels)
    training = read_images(config.data, "train", shape)
    classes, N = training.classes, len(training.labels_N)
    if len(classes) < 2:
        raise UserError("the training images have one class alone; a classifier needs two at least")
    held_out = labels_as(
        read_images(config.data, "validation", shape), classes, "the validation split"
    )
    print(f"{N} images of {len(classes)} classes", flush=True)
    model, batch, start = model_of(shape.channels, len(classes)), min(BATCH, N), time.monotonic()
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, epochs * (N // batch)))

    @functools.partial(jax.jit, compiler_options=convolution_options(jax.default_backend()))
    def step(params, state, images, labels):
        def loss(params):
            logits = model.bind(params).logits(images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        updates, state = adam.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    logits = jax.jit(lambda params, images: model.bind(params).logits(images))
    params = model.init(seed)
    state, accuracy = adam.init(params), 0.0
    for epoch in range(epochs):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(N)
        for i in range(0, N - batch + 1, batch):
            rows = order[i : i + batch]
            images = training.images_NHWC[rows]
            mirrored = rng.random(batch) < 0.5
            images = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
            params, state = step(params, state, images, training.labels_N[rows])
        found = [
            np.asarray(logits(params, part))[:count].argmax(axis=1)
            for part, count in batches_of(held_out.images_NHWC)
        ]
        accuracy = 100 * float((np.concatenate(found) == held_out.labels_N).mean())
        seconds = time.monotonic() - start
        print(f"epoch {epoch + 1}: accuracy {accuracy:.1f} per cent, {seconds:.0f} s", flush=True)
    about = *shape, classes, accuracy, len(held_out.labels_N), training.sha256, epochs, seed
    return params, About(*about)
