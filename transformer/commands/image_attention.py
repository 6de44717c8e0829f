"""Attention maps of pixels in generated images (Figure 1 of the SAGAN paper).

    python -m transformer image-attention --workdir=runs/sagan_cifar10 --classes=cat,ship \\
        --seeds=0:3 --pixels=8x8,16x24 --figure=attention.png

A row is an image that the generator makes. Its first column is the image, with a mark at each
chosen pixel, row x column from the upper left. Beside it, for each pixel, is the image under the
attention of that pixel: bright where it attends.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

if TYPE_CHECKING:
    from transformer.reports.pages import Picture
    from transformer.tasks.image_generation import ImageGenerator, Ready

restore_model = define_flags()
CLASSES = flags.DEFINE_list("classes", [], "Names of classes; all if none.")
SEEDS = flags.DEFINE_string("seeds", "0:2", "Such as 0:8 (from 0 to 7), or 3,7,11.")
PIXELS = flags.DEFINE_string("pixels", None, "Rows and columns, such as 8x8,16x24.")
FIGURE = DEFINE_path("figure", "image_attention.png", "The PNG or SVG file to write.")
COLOURS = "red", "lime", "deepskyblue", "yellow", "magenta"


def maps_of(
    task: "ImageGenerator", ready: "Ready", noise_NZ: np.ndarray, labels_N: np.ndarray
) -> np.ndarray:
    """Attention weights [N, H, W, H', W'] from each position of each image.

    H' and W' are those of the keys: half of H and W where keys are pooled.
    """
    import jax
    import jax.numpy as jnp

    @jax.jit
    def weights(params, extra, noise, labels):
        generator = task.model.bind(params, extra).generator
        x = generator.features(noise, labels)
        weights_BPQ = generator.attention.weights(x, update=False)
        side = round(weights_BPQ.shape[2] ** 0.5)
        return jnp.reshape(weights_BPQ, (*x.shape[:3], side, side))

    return np.asarray(weights(*ready, noise_NZ, labels_N))


def pixels_of(text: str | None, size: int) -> list[tuple[int, int]]:
    """Parses rows and columns; a small cross if `text` is None."""
    if text is None:
        return [(size // 2, size // 2), (size // 4, size // 2), (size // 2, size // 8)]
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)", part)
        if not match or not all(int(x) < size for x in match.groups()):
            raise UserError(
                f"--pixels has {part!r}; give rows and columns below {size}, such as 8x8,16x24"
            )
        found.append((int(match[1]), int(match[2])))
    return found


def figure(images_NHWC: np.ndarray, maps: np.ndarray, pixels: list[tuple[int, int]]) -> "Picture":
    from transformer.reports.pages import Picture

    N, size, columns = len(images_NHWC), images_NHWC.shape[1], 1 + len(pixels)
    made = Picture(1.6 * columns, 1.6 * N)
    axes = made.subplots(N, columns, squeeze=False)
    scale = size // maps.shape[1]  # pixels per attention position
    for n, row in enumerate(axes):
        image_HWC = np.broadcast_to(images_NHWC[n], (size, size, 3))
        row[0].imshow(image_HWC)
        for i, (y, x) in enumerate(pixels):
            colour = COLOURS[i % len(COLOURS)]
            weights = maps[n, y // scale, x // scale]
            light = np.kron(weights / weights.max(), np.ones(2 * (size // len(weights),)))
            row[1 + i].imshow((image_HWC * (0.15 + 0.85 * light[..., None])).astype(np.uint8))
            for place in (row[0], row[1 + i]):
                place.plot(x, y, "s", color=colour, markersize=4, markeredgecolor="black")
        for place in row:
            place.set_axis_off()
    return made


def main() -> None:
    from transformer.system.files import check_can_write
    from transformer.tasks.image_generation import ROWS, class_numbers, seed_numbers

    path = Path(FIGURE.value).expanduser()
    check_can_write(path, ".png", ".svg")
    model = restore_model(task="images")
    if model.config.model.attention == "none":
        raise UserError(f"{model.workdir} has no attention; give a run with model.attention")
    task, seeds = model.task, seed_numbers(SEEDS.value)
    pixels = pixels_of(PIXELS.value, task.shape.size)
    numbers = class_numbers(CLASSES.value, task.classes)
    labels, noise = np.repeat(numbers, len(seeds)), task.noise(np.tile(seeds, len(numbers)))
    if len(labels) > ROWS:
        raise UserError(f"{len(labels)} images are asked for; give at most {ROWS}")
    ready = task.ready(model.params, model.extra)
    made = figure(task.images(ready, noise, labels), maps_of(task, ready, noise, labels), pixels)
    made.write(path, dpi=120)
    print(f"wrote {path}; rows: {', '.join(f'{task.classes[c]}' for c in labels)}")
