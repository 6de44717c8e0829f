"""A trained image generator: samples and their scores."""

import dataclasses
import difflib
import functools
import io
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.labelled_images import (
    ImageData,
    ImageSet,
    Shape,
    check_memory,
    labels_as,
    read_images,
)
from transformer.data.pictures import grid, picture
from transformer.metrics.image_scores import image_scores
from transformer.models.functional import FunctionalModel, Params
from transformer.system import distributed
from transformer.system.commands import script
from transformer.system.errors import COUNT, UserError, check_choice, check_range, place, setting
from transformer.system.files import write_json
from transformer.system.paths import local
from transformer.system.sharding import distribute, row_shards, split_rows
from transformer.tasks.feature_classifier import FeatureClassifier, how_to_train_one
from transformer.tasks.task import Outputs
from transformer.training.adversarial import AdversarialConfig, Drawn, from_bytes, to_bytes
from transformer.training.step import TrainState, evaluation_step

CLASSES = "classes.json"  # in a work directory
ROWS = 64  # images generated at once
STANDING = 8  # batches for standing statistics
STANDING_SEED = 2**30  # seed of the first of their images
GRID_ROWS, GRID_COLUMNS = 10, 8  # of the sample grid: classes, and seeds of each
MOST_SEEDS = STANDING_SEED
MOST_AT_ONCE = 1_000_000  # images, all kept in memory
# The largest noise without truncation. JAX's generator gives no larger numbers, except at its lower
# end: one draw in four million is the lowest float there is.
FARTHEST = 6.0


@dataclasses.dataclass(frozen=True)
class ImagesConfig(AdversarialConfig):
    """The task section; see configs/sagan_cifar10.py."""

    statistics: str
    samples_every: int = setting(may_change=True, recorded=False)
    features: str | None = place()
    num_scored: int

    def __post_init__(self):
        super().__post_init__()
        check_choice(self, "task", "statistics", ("standing", "running"))
        check_range(self, "task", "samples_every", 0, COUNT)
        check_range(self, "task", "num_scored", 10, COUNT)


class Ready(NamedTuple):
    """Arrays to generate with: the averaged generator and its statistics."""

    params: Params
    extra: dict[str, Any]


class ImageGenerator:
    """A model with its class names. Image s of class c is the same in any batch."""

    def __init__(
        self, config: Any, classes: list[str], model: FunctionalModel, mesh: jax.sharding.Mesh
    ):
        self.data: ImageData = config.data
        self.config: ImagesConfig = config.task
        self.shape = Shape(config.model.image_size, config.model.channels)
        self.noise_size = config.model.noise_size
        self.classes = classes
        self.model = model
        self.mesh = mesh
        shards = row_shards(mesh)
        self.rows = -(-ROWS // shards) * shards

    def save(self, workdir: Path) -> None:
        write_json(workdir / CLASSES, {"classes": self.classes})

    def provenance(self) -> dict[str, Any]:
        about: dict[str, Any] = {"tokenizer_sha256": [], "classes": self.classes}
        if self.config.features:
            classifier = self.classifier
            about["features"] = {
                "sha256": classifier.sha256,
                "accuracy": classifier.about.accuracy,
                "held_out": classifier.about.held_out,
            }
        return about

    # --- Images ---------------------------------------------------------------------------

    @functools.cached_property
    def _noise(self) -> Any:
        def noise(seeds_N: jax.Array, bound: jax.Array) -> jax.Array:
            keys_N = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), seeds_N)
            draw = functools.partial(jax.random.truncated_normal, shape=(self.noise_size,))
            return jax.vmap(draw, (0, None, None))(keys_N, -bound, bound)

        return jax.jit(noise)

    def noise(self, seeds_N: np.ndarray, truncation: float | None = None) -> np.ndarray:
        """Normal noise [N, Z], a row for each seed; within +-`truncation` if that is given."""
        bound = np.float32(FARTHEST if truncation is None else truncation)
        if not 0 < bound < np.inf:
            raise UserError(f"the truncation is {truncation}; give a number above 0, such as 1")
        made = [
            np.asarray(self._noise(np.resize(part, ROWS).astype(np.uint32), bound))[: len(part)]
            for part in np.array_split(seeds_N, range(ROWS, len(seeds_N), ROWS))
        ]
        return np.concatenate(made)

    @functools.cached_property
    def generate(self) -> Any:
        """The jitted (params, extra, Drawn) -> images in bytes, on all devices."""
        return evaluation_step(
            lambda bound, drawn: to_bytes(bound.generator(*drawn)), self.model, self.mesh
        )

    @functools.cached_property
    def _restate(self) -> Any:
        """The jitted (params, extra, (Drawn, decays)) -> extra.

        It returns the statistics of a batch, after one iteration of spectral normalisation.
        """

        def restate(bound: Any, batch: tuple[Drawn, jax.Array]) -> dict[str, Any]:
            drawn, decay_B = batch
            bound.generator(*drawn, decay=decay_B[0], update=True)
            return self.model.extra_of(bound)

        return evaluation_step(restate, self.model, self.mesh)

    def drawn(self, noise_NZ: np.ndarray, labels_N: np.ndarray, *others: np.ndarray) -> Any:
        """A batch on the devices; one that is not full repeats its first rows."""

        def make(rows: np.ndarray) -> Any:
            rows = rows % len(labels_N)
            return Drawn(noise_NZ[rows], labels_N[rows].astype(np.int32)), *(
                x[rows] for x in others
            )

        return distribute(make, np.arange(self.rows), split_rows(self.mesh, axis=0))

    def ready(self, params: Params, extra: dict[str, Any]) -> Ready:
        """Arrays to generate with, from a run's state.

        Standing statistics come from some batches of images by the averaged generator. Running ones
        were gathered in training, from the generator that is not averaged. The same holds for the
        vectors of spectral normalisation.
        """
        params = params | {"generator": extra["average"]}
        if self.config.statistics == "running":
            return Ready(params, extra)
        # Random classes: there may be more classes than images, and neighbouring ones are often
        # alike.
        rng = np.random.default_rng(STANDING_SEED)
        for k in range(STANDING):
            seeds = STANDING_SEED + k * self.rows + np.arange(self.rows)
            labels = rng.integers(len(self.classes), size=self.rows)
            decays = np.full(self.rows, k / (k + 1), np.float32)  # the mean of all batches so far
            batch = self.drawn(self.noise(seeds), labels, decays)
            restated = self._restate(params, extra, batch)  # replicated on every device
            extra = jax.device_put(restated, jax.tree.map(lambda x: x.sharding, extra))
        return Ready(params, extra)

    def images(
        self,
        ready: Ready,
        noise_NZ: np.ndarray,
        labels_N: np.ndarray,
        check: Callable[[int], None] = lambda done: None,
    ) -> np.ndarray:
        """Images [N, H, W, C] in bytes; `check` is called with the number done."""
        made = []
        for i in range(0, len(labels_N), self.rows):
            part = slice(i, i + self.rows)
            (drawn,) = self.drawn(noise_NZ[part], labels_N[part])
            made.append(np.asarray(self.generate(*ready, drawn))[: len(labels_N[part])])
            check(i + len(made[-1]))
        return np.concatenate(made)

    def samples(self, ready: Ready) -> np.ndarray:
        """The grid of samples: a row for each class, a column for each seed."""
        rows = min(GRID_ROWS, len(self.classes)) if len(self.classes) > 1 else GRID_ROWS
        labels = np.repeat(np.arange(rows), GRID_COLUMNS) % len(self.classes)
        seeds = np.tile(np.arange(GRID_COLUMNS), rows)
        if len(self.classes) == 1:
            seeds = np.arange(len(labels))
        return grid(self.images(ready, self.noise(seeds), labels), GRID_COLUMNS)

    # --- Scores ---------------------------------------------------------------------------

    @functools.cached_property
    def classifier(self) -> FeatureClassifier:
        if not self.config.features:
            raise UserError(
                "task.features is not given, and scores need a classifier; give its file "
                f"({script('evaluate')}: --features); {how_to_train_one()}"
            )
        path = Path(local(self.config.features, "task.features"))
        classifier = FeatureClassifier.load(path)
        classifier.check(self.shape, path)
        return classifier

    def real(self, split: str) -> ImageSet:
        return labels_as(read_images(self.data, split, self.shape), self.classes, f"split {split}")

    def halves(self, found: ImageSet) -> tuple[ImageSet, ImageSet]:
        """Splits the real images in two: one half to compare with, one for the floor."""
        size = min(self.config.num_scored, len(found.labels_N) // 2)
        if size < 5:
            raise UserError(
                f"there are {len(found.labels_N)} real images to compare with; scores need 10"
            )
        order = np.random.default_rng(0).permutation(len(found.labels_N))
        return found.take(order[:size]), found.take(order[size : 2 * size])

    def made(
        self, ready: Ready, number: int, check: Callable[[int], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The images that scores are of, of all classes in turn, and their labels."""
        seeds = np.arange(number)
        labels = seeds % len(self.classes)
        return self.images(ready, self.noise(seeds), labels, check), labels

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        classifier = self.classifier
        with distributed.first_alone():
            reference, others = self.halves(self.real(split))
        size, ready = len(reference.labels_N), self.ready(params, extra)
        made, labels = self.made(ready, size, lambda done: progress(done, size))
        features = {
            "reference": classifier.features(reference.images_NHWC),
            "others": classifier.features(others.images_NHWC),
            "generated": classifier.features(made),
        }
        scores = image_scores(*features.values(), classifier.words)
        files = {
            "features.npz": _npz(**features),
            "generated.npz": _npz(images=made, labels=labels, classes=np.array(self.classes)),
            "real.npz": _npz(images=reference.images_NHWC, labels=reference.labels_N),
            "samples.png": picture(self.samples(ready)).png,
        }
        texts = {"hypotheses": [f"{self.classes[n]}\t{s}" for s, n in enumerate(labels)]}
        examples = "samples of each class: samples.png"
        return Outputs(texts, scores, examples, files)

    @functools.cached_property
    def judge(self) -> Any:
        """The jitted (params, extra, (images, labels)) -> the discriminator's logits [B]."""
        return evaluation_step(
            lambda bound, batch: bound.discriminator(from_bytes(batch[0]), batch[1]),
            self.model,
            self.mesh,
        )

    def logits(
        self, state: TrainState, images_NHWC: np.ndarray, labels_N: np.ndarray
    ) -> np.ndarray:
        """The discriminator's logits [N] for a batch of images; N is `rows`."""

        def make(rows: np.ndarray) -> Any:
            return images_NHWC[rows], labels_N[rows].astype(np.int32)

        batch = distribute(make, np.arange(self.rows), split_rows(self.mesh, axis=0))
        return np.asarray(self.judge(state.params, state.extra, batch))


def class_numbers(names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """The numbers of the named classes, all if none is named; UserError for an unknown name."""
    for name in names:
        if name not in classes:
            near = difflib.get_close_matches(name, classes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(classes[:10])}"
            raise UserError(f"there is no class {name!r}; {hint}")
    numbers = {name: number for number, name in enumerate(classes)}
    return np.array([numbers[name] for name in names or classes])


def folders_of(classes: Sequence[str]) -> list[str]:
    """A folder name for each class; class names may be a stranger's, such as .. or "".

    Numbers tell them apart if some would be one folder, also where case is ignored (macOS,
    Windows), or none.
    """
    names = [re.sub("[/\0]", "_", name) for name in classes]
    if len({name.casefold() for name in names} - {"", ".", ".."}) == len(names):
        return names
    return [f"{number}_{name}" for number, name in enumerate(names)]


def check_number(classes: int, seeds: int, steps: int | None, shape: Shape) -> None:
    """Raises UserError for more images than can be made at once. steps: see `between`."""
    columns = seeds if steps is None else (seeds - 1) * steps
    number, asked = classes * columns, "--classes x --seeds"
    asked += "" if steps is None else " x --interpolate"
    if number > MOST_AT_ONCE:
        raise UserError(
            f"{asked} are {number:,} images; give fewer: at most {MOST_AT_ONCE:,} at once"
        )
    check_memory(4 * number, shape, asked)  # the images, a page of them and its colours


def seed_numbers(text: str) -> np.ndarray:
    """The seeds in "0:8" or in "3,7,11"."""
    try:
        if ":" in text:
            first, end = map(int, text.split(":"))
            if end - first > MOST_AT_ONCE:
                raise UserError(
                    f"the seeds are {text!r}, {end - first:,} of them; give at most "
                    f"{MOST_AT_ONCE:,} at once"
                )
            seeds = list(range(first, end))
        else:
            seeds = [int(part) for part in text.split(",")]
        if not seeds or not all(0 <= seed < MOST_SEEDS for seed in seeds):
            raise ValueError
    except ValueError:
        raise UserError(
            f"the seeds are {text!r}; give whole numbers from 0 on, such as 0:8 or 3,7,11"
        ) from None
    return np.array(seeds)


def between(noise_NZ: np.ndarray, steps: int) -> np.ndarray:
    """Interpolates from each noise to the next in `steps` steps, both ends included.

    It follows the sphere, so each point is as long as noise is; a straight line would cross the
    inside, where no noise lies.
    """
    if len(noise_NZ) < 2:
        raise UserError("between images there must be two seeds at least; give --seeds=3,7")
    parts = np.linspace(0, 1, steps)[:, None].astype(np.float32)
    rows = []
    for start, end in itertools.pairwise(noise_NZ):
        cosine = start @ end / (np.linalg.norm(start) * np.linalg.norm(end))
        angle = np.arccos(np.clip(cosine, -1, 1))
        if np.sin(angle) < 1e-4:
            rows.append((1 - parts) * start + parts * end)
        else:
            weights = np.sin((1 - parts) * angle), np.sin(parts * angle)
            rows.append((weights[0] * start + weights[1] * end) / np.sin(angle))
    return np.concatenate(rows).astype(np.float32)


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
