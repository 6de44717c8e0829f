"""Images with classes: from a folder for each class, NumPy files, or a data set of TFDS."""

import collections
import dataclasses
import hashlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from transformer.data.pictures import of_eight_bits, on_white
from transformer.data.splits import DatasetSection, DatasetSplit, open_dataset
from transformer.system.decimals import written
from transformer.system.errors import UserError, check_choice, check_range, place
from transformer.system.hardware import memory_of_host
from transformer.system.paths import check_utf8, local, looked_up
from transformer.system.reading import plain

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
NAMED = 5  # the most names in a message
MOST_CLASSES = 2**20  # a larger label is a mistake, and lists up to it would fill the memory
# Pillow's exceptions for a file that is no image, is damaged, or would fill the memory.
_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)


@dataclasses.dataclass(frozen=True)
class ImageData(DatasetSection):
    """The data section; see configs/sagan_cifar10.py."""

    data_dir: str = place()
    train_images: str | None = place()
    validation_images: str | None = place()
    test_images: str | None = place()
    held_out: float
    other_sizes: str
    corrupt_files: str
    flip: bool

    what = "images"
    kinds = (("images",),)

    def __post_init__(self):
        check_range(self, "data", "held_out", 0, 1)
        check_choice(self, "data", "other_sizes", ("refuse", "resize"))
        check_choice(self, "data", "corrupt_files", ("refuse", "skip"))


class ImageSet(NamedTuple):
    """Images of one size, as bytes, with the numbers of their classes."""

    images_NHWC: np.ndarray
    labels_N: np.ndarray
    classes: list[str]

    @property
    def sha256(self) -> str:
        content = hashlib.sha256(repr((self.images_NHWC.shape, self.classes)).encode())
        content.update(np.ascontiguousarray(self.images_NHWC).data)
        content.update(self.labels_N.astype("<i8").data)
        return content.hexdigest()

    def take(self, numbers: np.ndarray) -> "ImageSet":
        return ImageSet(self.images_NHWC[numbers], self.labels_N[numbers], self.classes)


class Shape(NamedTuple):
    """The shape of images that a model expects."""

    size: int
    channels: int  # 1: grey, 3: red, green, blue


def read_images(config: ImageData, split: str, shape: Shape) -> ImageSet:
    """The images of a split; raises UserError for anything wrong with them.

    Without files for validation, the share `held_out` of the training images of each class is the
    validation split, and is left out of the training split.
    """
    if not config.uses_files:
        return _converted(config, _of_dataset(config, split), split, shape)
    path, part = _source(config, split)
    if path.is_dir():
        given = _of_folder(path)
    elif path.suffix.lower() in (".npz", ".npy"):
        given = _of_arrays(path)
    else:
        raise UserError(f"{path} is no folder, and no .npz or .npy file; give one of these")
    found = _converted(config, given, split, shape)
    return found if part is None else found.take(_part(found.labels_N, config.held_out, part))


def content_sha256(config: ImageData, split: str) -> str:
    """A hash of a split's raw data, which does not depend on the size that a model expects."""
    content = hashlib.sha256()
    if not config.uses_files:
        for record in _open(config, split).records():
            content.update(repr((record["image"].shape, int(record.get("label", 0)))).encode())
            content.update(np.ascontiguousarray(record["image"]).data)
        return content.hexdigest()
    path, part = _source(config, split)
    content.update(repr((part, part and config.held_out)).encode())
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            content.update(f"{file.relative_to(path)}\n".encode(errors="surrogateescape"))
            content.update(file.read_bytes())
    return content.hexdigest()


def _source(config: ImageData, split: str) -> tuple[Path, str | None]:
    """The path of a split's images, and their part: None for all, 'held out' or 'rest'."""
    part, given = None, split
    if config.held_out and not config.validation_images and split in ("train", "validation"):
        part, given = "rest" if split == "train" else "held out", "train"
    hint = ", or data.held_out" if given == "validation" else ""
    path = config.needed(given, hint)["images"]
    path = Path(local(path, f"data.{given}_images"))
    if not path.exists():
        raise UserError(f"there is no {path}{looked_up(path)}; give a folder, .npz or .npy file")
    return path, part


def _part(labels_N: np.ndarray, held_out: float, part: str) -> np.ndarray:
    """The numbers of the images that are held out of each class, or those of the rest."""
    chosen = np.zeros(len(labels_N), bool)
    for label in np.unique(labels_N):
        numbers = np.nonzero(labels_N == label)[0]
        count = round(written(held_out) * len(numbers))
        if not 0 < count < len(numbers):
            raise UserError(
                f"data.held_out is {held_out}, which of the {len(numbers)} images of class {label} "
                f"holds out {count}; change it, or give data.validation_images"
            )
        chosen[np.random.default_rng(0).permutation(numbers)[:count]] = True
    return np.nonzero(chosen == (part == "held out"))[0]


# --- Sources ------------------------------------------------------------------------------


class _Given(NamedTuple):
    """The images of a source, not opened yet, with their names in messages."""

    place: str
    images: Iterator[tuple[str, Callable[[], Image.Image]]]
    labels_N: np.ndarray  # complete once the images were gone through
    classes: list[str]


def _of_folder(path: Path) -> _Given:
    """The images of a folder, with a folder for each class or with images of one class."""
    folders = sorted(x for x in path.iterdir() if x.is_dir() and not x.name.startswith("."))
    files, labels, other_kinds = [], [], []
    for label, folder in enumerate(folders or [path]):
        check_utf8(folder, "a folder of images")
        found = sorted(x for x in folder.rglob("*") if not x.name.startswith("."))
        own = [x for x in found if _is_image(x)]
        other_kinds += [x for x in found if not _is_image(x) and x.is_file()]
        if not own:
            raise UserError(
                f"{folder} has no images ({', '.join(SUFFIXES)}); add some, or remove the folder"
            )
        files += own
        labels += len(own) * [label]
    beside = sorted(x for x in path.iterdir() if _is_image(x)) if folders else []
    _say_left_out(path, {"files of other kinds": other_kinds, "images beside the folders": beside})

    def opened(file: Path) -> Callable[[], Image.Image]:
        return lambda: Image.open(plain(file))

    images = ((str(file), opened(file)) for file in files)
    return _Given(str(path), images, np.array(labels), [x.name for x in folders or [path]])


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _say_left_out(path: Path, left_out: dict[str, list[Path]]) -> None:
    """Warns of them in one line, with the first of each kind."""
    parts = [
        f"{len(files)} {what} (such as {files[0].relative_to(path)})"
        for what, files in left_out.items()
        if files
    ]
    if parts:
        print(f"warning: {path}: left out are {' and '.join(parts)}", flush=True)


def _of_arrays(path: Path) -> _Given:
    """`images` [N, H, W] or [N, H, W, C] of bytes, and optionally `labels` [N] and `classes`."""
    arrays = load_arrays(path)
    arrays = {"images": arrays["array"]} if path.suffix.lower() == ".npy" else arrays
    if "images" not in arrays:
        raise UserError(f"{path} has no array 'images'; it has: {', '.join(arrays)}")
    images = arrays["images"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or not images.size:
        raise UserError(
            f"{path}: 'images' has shape {images.shape} and type {images.dtype}; it must be "
            "[N, H, W] or [N, H, W, C] of uint8, and none of them 0"
        )
    images = images if images.ndim == 4 else images[..., None]
    labels = arrays.get("labels", np.zeros(len(images), np.int64))
    if (
        labels.shape != (len(images),)
        or labels.dtype.kind not in "iu"
        or not 0 <= labels.min() <= labels.max() < MOST_CLASSES
    ):
        raise UserError(
            f"{path}: 'labels' has shape {labels.shape} and type {labels.dtype}; it must be "
            f"[{len(images)}] of whole numbers from 0 on, below {MOST_CLASSES:,}"
        )
    labels = labels.astype(np.int64)  # 255 + 1 is 0 in a uint8
    names = _names_of_classes(arrays.get("classes", np.arange(labels.max() + 1)), str(path))
    opened = ((f"{path}, image {i}", _opened(x)) for i, x in enumerate(images))
    return _Given(str(path), opened, labels, names)


def _names_of_classes(classes: np.ndarray, place: str) -> list[str]:
    """The names of classes, from text, bytes or whole numbers."""
    if classes.ndim != 1 or classes.dtype.kind not in "USiu":
        raise UserError(
            f"{place}: 'classes' has shape {classes.shape} and type {classes.dtype}; it must be "
            "[number of classes] of names"
        )
    try:
        names = [str(x, "utf-8") if isinstance(x, bytes) else str(x) for x in classes]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: 'classes' has {error.object!r}, which is no UTF-8; write the names as text"
        ) from error
    if twice := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise UserError(
            f"{place}: 'classes' has {twice[0]!r} more than once; give each class its own name"
        )
    return names


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz; that of an .npy is called array. Raises UserError without arrays."""
    try:
        with plain(path).open("rb") as file:
            loaded = np.load(file)
            return {"array": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except Exception as error:  # zipfile and zlib have exceptions of their own
        reason = "it holds Python objects" if "allow_pickle" in str(error) else error
        raise UserError(f"{path} cannot be read as NumPy arrays ({reason})") from error


def _open(config: ImageData, split: str) -> DatasetSplit:
    return open_dataset(config, split, {"dataset": "image"})


def _of_dataset(config: ImageData, split: str) -> _Given:
    found = _open(config, split)
    records, features = found.records(), found.builder.info.features
    labels, place = np.zeros(len(records), np.int64), f"{config.dataset} {split}"

    def images() -> Iterator[tuple[str, Callable[[], Image.Image]]]:
        for i in range(len(records)):
            record = records[i]
            labels[i] = record.get("label", 0)
            yield f"{place}, image {i}", _opened(record["image"])

    classes = list(features["label"].names) if "label" in features else ["image"]
    return _Given(place, images(), labels, classes)


def _opened(array_HWC: np.ndarray) -> Callable[[], Image.Image]:
    array = array_HWC[..., 0] if array_HWC.shape[-1] == 1 else array_HWC
    return lambda: Image.fromarray(array)


def _check_classes(labels: np.ndarray, classes: list[str], split: str, place: str) -> None:
    """Raises UserError for a label without a class, and for a class without training images."""
    counts = np.bincount(labels, minlength=len(classes))
    if len(counts) > len(classes):
        raise UserError(
            f"{place}: a label is {len(counts) - 1}, and there are {len(classes)} classes"
        )
    empty = [name for name, count in zip(classes, counts) if not count]
    if empty and (split == "train" or len(empty) == len(classes)):
        raise UserError(f"{place}: no image of the class(es) {', '.join(empty[:NAMED])}; add some")


# --- To one size --------------------------------------------------------------------------


def _converted(config: ImageData, given: _Given, split: str, shape: Shape) -> ImageSet:
    """The images that can be read, at the shape of the model."""
    (size, channels), count = shape, len(given.labels_N)
    check_memory(count, shape, given.place)
    made = np.empty((count, size, size, channels), np.uint8)
    good, bad = [], []
    for i, (name, open_image) in enumerate(given.images):
        try:
            with open_image() as image:
                upright = of_eight_bits(ImageOps.exif_transpose(image))
                pixels = on_white(upright).convert("L" if channels == 1 else "RGB")
        except _UNREADABLE as error:
            reason = str(error).partition("\n")[0]
            if config.corrupt_files == "refuse":
                raise UserError(
                    f"{name} cannot be read as an image ({reason}); remove it, or set "
                    "data.corrupt_files to 'skip'"
                ) from error
            bad.append(name)
            continue
        if pixels.size != (size, size):
            if config.other_sizes == "refuse":
                raise UserError(
                    f"{name} has {pixels.width} x {pixels.height} pixels, and model.image_size is "
                    f"{size}; set data.other_sizes to 'resize', or give images of that size"
                )
            pixels = ImageOps.fit(pixels, (size, size), Image.Resampling.BICUBIC)
        made[len(good)] = np.asarray(pixels).reshape(size, size, channels)
        good.append(i)
    if bad:
        more = ", ..." if len(bad) > NAMED else ""
        print(f"warning: {len(bad)} of {count} images cannot be read and are left out: "
              f"{', '.join(bad[:NAMED])}{more}", flush=True)  # fmt: skip
    labels = given.labels_N[good]
    _check_classes(labels, given.classes, split, given.place)
    return ImageSet(made[: len(good)], labels, given.classes)


def check_memory(count: int, shape: Shape, place: str) -> None:
    """Raises UserError if the images, which all stay in memory, need more than half of it."""
    needed, host = count * shape.size**2 * shape.channels, memory_of_host()
    if needed > host // 2:
        raise UserError(
            f"{place}: {count} images of {shape.size} x {shape.size} pixels need {needed:,} bytes, "
            f"and this machine has {host:,}; give fewer images, or a smaller model.image_size"
        )


def labels_as(found: ImageSet, classes: list[str], place: str) -> ImageSet:
    """The same images, with their classes numbered as in `classes`."""
    known = {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in found.classes if name not in known]:
        raise UserError(
            f"{place} has the class {unknown[0]!r}, which the training images do not have; they "
            f"have: {', '.join(classes[:NAMED])}"
        )
    numbers = np.array([known[name] for name in found.classes])
    return ImageSet(found.images_NHWC, numbers[found.labels_N], classes)
