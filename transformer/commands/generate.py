"""Makes images with a trained generator.

    python -m transformer generate --workdir=runs/sagan_cifar10 --grid=samples.png
    python -m transformer generate --workdir=runs/sagan_cifar10 --classes=cat,ship \\
        --seeds=0:100 --output=images
    python -m transformer generate --workdir=runs/sagan_cifar10 --classes=cat --seeds=3,7 \\
        --interpolate=8 --grid=between.png

A class and a seed determine an image: the same in any batch, on any device. --output is a folder;
an image goes to OUTPUT/<class>/<seed>.png. --grid is one picture: a row for each class, a column
for each seed. --truncation keeps noise within plus and minus that number: better images, but more
alike.
"""

from pathlib import Path

from absl import flags

from transformer.runs.model_flags import define_flags
from transformer.system.commands import script
from transformer.system.errors import SIZE, UserError
from transformer.system.paths import DEFINE_path

restore_model = define_flags()
CLASSES = flags.DEFINE_list("classes", [], "Names of classes; all if none.")
SEEDS = flags.DEFINE_string("seeds", "0:8", "Such as 0:8 (from 0 to 7), or 3,7,11.")
OUTPUT = DEFINE_path("output", None, "A folder for the images, a file for each.")
GRID = DEFINE_path("grid", None, "A PNG file for all of them.")
TRUNCATION = flags.DEFINE_float(
    "truncation", None, "The largest noise, such as 1.", lower_bound=0.01
)
INTERPOLATE = flags.DEFINE_integer(
    "interpolate", None, "From each seed to the next, so many steps.", 2, SIZE
)


def main() -> None:
    import numpy as np

    from transformer.data.pictures import grid, picture
    from transformer.system import distributed
    from transformer.system.files import (
        check_can_write,
        folder_allows,
        write_atomically,
        write_named,
    )
    from transformer.tasks.image_generation import (
        between,
        check_number,
        class_numbers,
        folders_of,
        seed_numbers,
    )

    distributed.refuse_jobs(script("generate"))
    output, page = (value and Path(value).expanduser() for value in (OUTPUT.value, GRID.value))
    if not (output or page):
        raise UserError("nothing is to be written; give --grid, --output or both")
    if page:
        check_can_write(page, ".png")
    if output and (output.is_file() or not folder_allows(output / "x")):
        raise UserError(f"--output={output} cannot be written; name a folder in another place")
    if INTERPOLATE.value and output:
        raise UserError("--interpolate makes images between seeds; give --grid, and not --output")
    model = restore_model(task="images")
    task, seeds = model.task, seed_numbers(SEEDS.value)
    numbers = class_numbers(CLASSES.value, task.classes)
    check_number(len(numbers), len(seeds), INTERPOLATE.value, task.shape)
    noise = task.noise(seeds, TRUNCATION.value)
    if INTERPOLATE.value:
        noise = between(noise, INTERPOLATE.value)
    columns = len(noise)
    labels = np.repeat(numbers, columns)
    made = task.images(
        task.ready(model.params, model.extra), np.tile(noise, (len(numbers), 1)), labels
    )
    if output:
        folders = folders_of(task.classes)
        for image, label, seed in zip(made, labels, np.tile(seeds, len(numbers)), strict=True):
            write_atomically(output / folders[label] / f"{seed}.png", picture(image).png)
        print(f"wrote {len(made)} images to {output}")
    if page:
        write_named(page, picture(grid(made, columns)).png)
        print(f"wrote {page}; rows: {', '.join(task.classes[number] for number in numbers)}")
