"""Images from folders, NumPy files and TFDS, and all that can be wrong with them."""

import dataclasses

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tensorflow_datasets.image_classification
from PIL import Image
from PIL.ExifTags import Base

from configs import sagan_cifar10
from transformer.data.labelled_images import (
    ImageData,
    Shape,
    content_sha256,
    labels_as,
    read_images,
)
from transformer.data.pictures import grid, picture
from transformer.system.errors import UserError

SHAPE = Shape(4, 3)
DATA = dataclasses.replace(ImageData(**sagan_cifar10.get_data().to_dict()), dataset=None)
PIXELS = np.zeros((3, 4, 4), np.uint8)


def data(path, **changes) -> ImageData:
    return dataclasses.replace(DATA, **{"train_images": str(path), "held_out": 0.0} | changes)


@pytest.fixture
def folder(tmp_path):
    """Two classes: five red images, and three blue ones."""
    for name, count, colour in (("red", 5, (255, 0, 0)), ("blue", 3, (0, 0, 255))):
        (tmp_path / name).mkdir()
        for i in range(count):
            image = Image.new("RGB", (4, 4), colour)
            image.putpixel((0, 0), (i, i, i))
            image.save(tmp_path / name / f"{i}.png")
    (tmp_path / "red" / ".DS_Store").write_bytes(b"x")
    return tmp_path


def test_a_folder(folder):
    found = read_images(data(folder), "train", SHAPE)
    assert found.classes == ["blue", "red"]
    assert found.labels_N.tolist() == 3 * [0] + 5 * [1]
    assert found.images_NHWC[4].tolist() == [
        [[1, 1, 1], *3 * [[255, 0, 0]]],
        *3 * [4 * [[255, 0, 0]]],
    ]


def test_names_that_are_not_utf8(folder):
    (folder / "red/0.png").rename(folder / "red/\udce9.png")
    assert len(read_images(data(folder), "train", SHAPE).images_NHWC) == 8
    assert content_sha256(data(folder), "train")
    (folder / "red").rename(folder / "caf\udce9")
    with pytest.raises(UserError, match=r"^a folder of images is .*, whose name is not UTF-8"):
        read_images(data(folder), "train", SHAPE)


def test_a_part_is_held_out(folder):
    config = data(folder, held_out=0.4)
    rest, held = (read_images(config, split, SHAPE) for split in ("train", "validation"))
    assert held.labels_N.tolist() == [0, 1, 1]
    corners = np.concatenate([found.images_NHWC[:, 0, 0, 0] for found in (rest, held)])
    assert sorted(corners.tolist()) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert len({content_sha256(config, split) for split in ("train", "validation")}) == 2
    with pytest.raises(UserError, match="of the 3 images of class 0 holds out 0; change it"):
        read_images(data(folder, held_out=0.1), "train", SHAPE)


def test_the_part_is_that_of_the_decimal(tmp_path):
    """A half to the even number: of 10.5."""
    np.save(tmp_path / "images.npy", np.zeros((150, 4, 4, 3), np.uint8))
    config = data(tmp_path / "images.npy", held_out=0.07)
    assert len(read_images(config, "validation", SHAPE).labels_N) == 10


def test_grey_images_and_grey_models(folder):
    Image.new("L", (4, 4), 77).save(folder / "red" / "grey.png")
    found = read_images(data(folder), "train", SHAPE)
    assert found.images_NHWC[-1].tolist() == 4 * [4 * [[77, 77, 77]]]
    grey = read_images(data(folder), "train", Shape(4, 1))
    assert grey.images_NHWC.shape == (9, 4, 4, 1)
    assert grey.images_NHWC[0, 1, 1, 0] == 29  # 0.114 of 255


def test_sixteen_bits(folder):
    Image.fromarray(np.full((4, 4), 77 * 257, np.uint16)).save(folder / "red" / "grey.png")
    found = read_images(data(folder), "train", SHAPE)
    assert found.images_NHWC[-1].tolist() == 4 * [4 * [[77, 77, 77]]]
    Image.fromarray(np.full((4, 4), 0.3, np.float32)).save(folder / "red" / "real.tif")
    with pytest.raises(UserError, match=r"real.tif cannot be read .*Pillow's mode F; give them 8"):
        read_images(data(folder), "train", SHAPE)


def test_photos_are_turned_as_their_cameras_say(folder):
    """Orientation 6 of EXIF: the camera was turned, and the photo's left column is its top row."""
    image = Image.new("RGB", (4, 4), (0, 0, 255))
    for y in range(4):
        image.putpixel((0, y), (255, 10 * y, 0))
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    image.save(folder / "red" / "turned.png", exif=exif)
    found = read_images(data(folder), "train", SHAPE)
    top = [[255, 30, 0], [255, 20, 0], [255, 10, 0], [255, 0, 0]]
    assert found.images_NHWC[-1].tolist() == [top, *3 * [4 * [[0, 0, 255]]]]


def test_a_photo_whose_exif_is_damaged(folder):
    exif = Image.Exif()
    exif[Base.Orientation], exif[Base.ResolutionUnit] = 6, 2
    file = folder / "red" / "photo.jpg"
    Image.new("RGB", (4, 4)).save(file, exif=exif)
    content = bytearray(file.read_bytes())
    content[content.index(b"Exif") + 31] = 4  # the type of the unit: now of 32 bits
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"photo.jpg cannot be read as an image"):
        read_images(data(folder), "train", SHAPE)


def test_what_is_transparent_is_white(folder):
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    clear.putpixel((0, 0), (255, 0, 0, 255))
    clear.putpixel((1, 0), (0, 0, 0, 51))  # a fifth of black
    clear.save(folder / "red" / "rgba.png")
    clear.convert("LA").save(folder / "red" / "grey.png")
    of_palette = Image.new("P", (4, 4), 0)
    of_palette.putpalette([0, 0, 0, 255, 0, 0])
    of_palette.putpixel((0, 0), 1)
    of_palette.save(folder / "red" / "palette.gif", transparency=0)
    found = read_images(data(folder), "train", SHAPE)
    grey, of_palette, rgba = found.images_NHWC[-3:]
    assert rgba[0].tolist() == [[255, 0, 0], [204, 204, 204], *2 * [[255, 255, 255]]]
    assert grey[0].tolist() == [[76, 76, 76], [204, 204, 204], *2 * [[255, 255, 255]]]
    assert of_palette[0].tolist() == [[255, 0, 0], *3 * [[255, 255, 255]]]
    assert rgba[1:].min() == grey[1:].min() == of_palette[1:].min() == 255
    greys = read_images(data(folder), "train", Shape(4, 1)).images_NHWC
    assert greys[-1][0, :, 0].tolist() == [76, 204, 255, 255]


def test_other_sizes(folder):
    wide = Image.new("RGB", (8, 4), (0, 255, 0))
    wide.save(folder / "red" / "wide.png")
    with pytest.raises(UserError, match=r"wide.png has 8 x 4 pixels, and model.image_size is 4; "):
        read_images(data(folder), "train", SHAPE)
    found = read_images(data(folder, other_sizes="resize"), "train", SHAPE)
    assert found.images_NHWC[-1].tolist() == 4 * [4 * [[0, 255, 0]]]


def test_corrupt_files(folder, capsys):
    bad = folder / "red" / "2.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(UserError, match=r"red/2.png cannot be read as an image .*'skip'"):
        read_images(data(folder), "train", SHAPE)
    found = read_images(data(folder, corrupt_files="skip"), "train", SHAPE)
    assert found.labels_N.tolist() == 3 * [0] + 4 * [1]
    assert "1 of 8 images cannot be read and are left out: " in capsys.readouterr().out
    for file in (folder / "blue").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"no image of the class.es. blue; add some"):
        read_images(data(folder, corrupt_files="skip"), "train", SHAPE)


def test_an_image_too_large_to_open(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)  # of 16
    with pytest.raises(UserError, match=r"0.png cannot be read as an image \(Image size"):
        read_images(data(folder), "train", SHAPE)


def test_an_empty_class(folder):
    (folder / "green").mkdir()
    with pytest.raises(UserError, match="green has no images"):
        read_images(data(folder), "train", SHAPE)


def test_one_class_without_folders(folder):
    found = read_images(data(folder / "red"), "train", SHAPE)
    assert found.classes == ["red"]
    assert len(found.labels_N) == 5


def test_files_that_are_left_out_are_counted(folder, capsys):
    read_images(data(folder), "train", SHAPE)
    assert capsys.readouterr().out == ""  # also of hidden files
    (folder / "blue" / "more").mkdir()
    for name in ("red/a.heic", "blue/notes.txt", "blue/more/b.avif", "LICENSE", "c.JPG", ".d.png"):
        (folder / name).write_bytes(b"x")
    found = read_images(data(folder), "train", SHAPE)
    assert found.labels_N.tolist() == 3 * [0] + 5 * [1]
    assert capsys.readouterr().out == (
        f"warning: {folder}: left out are 3 files of other kinds (such as blue/more/b.avif) and "
        "1 images beside the folders (such as c.JPG)\n"
    )
    read_images(data(folder / "red"), "train", SHAPE)
    assert capsys.readouterr().out == (
        f"warning: {folder / 'red'}: left out are 1 files of other kinds (such as a.heic)\n"
    )


def test_numpy_files(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), np.uint8)
    labels = np.array([0, 1, 1, 0, 2, 1])
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    found = read_images(data(tmp_path / "a.npz"), "train", SHAPE)
    np.testing.assert_array_equal(found.images_NHWC, images)
    assert (found.labels_N.tolist(), found.classes) == (labels.tolist(), ["0", "1", "2"])
    np.savez(tmp_path / "c.npz", images=images[:4], labels=[0, 0, 2, 2])  # none of class 1
    config = data(tmp_path / "a.npz", validation_images=str(tmp_path / "c.npz"))
    found = read_images(config, "validation", SHAPE)
    assert (found.labels_N.tolist(), found.classes) == ([0, 0, 2, 2], ["0", "1", "2"])
    (tmp_path / "a.npz").rename(tmp_path / "A.NPZ")
    assert len(read_images(data(tmp_path / "A.NPZ"), "train", SHAPE).labels_N) == len(images)
    np.save(tmp_path / "b.npy", images[..., 0])
    found = read_images(data(tmp_path / "b.npy"), "train", Shape(4, 1))
    np.testing.assert_array_equal(found.images_NHWC, images[..., :1])
    assert found.classes == ["0"]


def test_labels_and_names_of_other_types(tmp_path):
    for number, (labels, given, names) in enumerate(
        [
            (np.arange(3, dtype=np.uint64), {}, ["0", "1", "2"]),
            (
                np.arange(3, dtype=np.uint8),
                {"classes": [b"cat", b"dog", b"emu"]},
                ["cat", "dog", "emu"],
            ),
            (np.arange(3), {"classes": np.array([7, 5, 3], np.uint64)}, ["7", "5", "3"]),
        ]
    ):
        path = tmp_path / f"{number}.npz"
        np.savez(path, images=PIXELS, labels=labels, **given)
        found = read_images(data(path), "train", SHAPE)
        assert found.classes == names
        assert found.labels_N.tolist() == [0, 1, 2]
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=np.array([0, 1, 255], np.uint8))
    config = data(tmp_path / "0.npz", validation_images=str(tmp_path / "a.npz"))
    assert len(read_images(config, "validation", SHAPE).classes) == 256


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pixels": np.zeros(3)}, "has no array 'images'; it has: pixels"),
        ({"images": np.zeros((3, 4, 4), np.float32)}, "type float32; it must be"),
        ({"images": np.zeros((3, 4, 4), np.uint8), "labels": np.zeros(2, int)}, "'labels' has"),
        (
            {"images": np.zeros((3, 4, 4), np.uint8), "labels": np.array([0, 2, 2])},
            "no image of the class(es) 1; add some",
        ),
        ({"images": np.zeros((3, 0, 4), np.uint8)}, "has shape (3, 0, 4) and type uint8; it must"),
        ({"images": np.zeros((3, 4, 0, 1), np.uint8)}, "and none of them 0"),
        (
            {"images": PIXELS, "labels": np.array([0, 2**40, 2])},
            "of whole numbers from 0 on, below 1,048,576",
        ),
        ({"images": PIXELS, "classes": np.array("cat")}, "'classes' has shape () and type <U3"),
        ({"images": PIXELS, "classes": np.array([0.0])}, "'classes' has shape (1,) and type float"),
        ({"images": PIXELS, "classes": np.array([b"c\xe9"])}, "no UTF-8; write the names as text"),
        (
            {"images": PIXELS, "labels": np.arange(3), "classes": np.array(["cat", "dog", "cat"])},
            "'classes' has 'cat' more than once; give each class its own name",
        ),
    ],
)
def test_numpy_files_that_are_wrong(arrays, message, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError) as error:
        read_images(data(tmp_path / "a.npz"), "train", SHAPE)
    assert message in str(error.value)


def test_what_is_not_there(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"no zip")
    (tmp_path / "a.txt").write_bytes(b"")
    for path, message in (("a.npz", "a.npz"), ("a.txt", "no .npz or .npy"), ("b", "there is no")):
        with pytest.raises(UserError, match=message):
            read_images(data(tmp_path / path), "train", SHAPE)
    with pytest.raises(UserError, match=r"validation split; give data.validation_images, or data"):
        read_images(data(tmp_path), "validation", SHAPE)


def test_too_many_images_for_the_memory(folder):
    with pytest.raises(UserError, match=r"8 images of 1000000 x 1000000 pixels need 24,000,"):
        read_images(data(folder), "train", Shape(1_000_000, 3))


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)


def cifar10(folder):
    """Its archive, unpacked: files of a label and an image, colour by colour."""
    rows = [bytes([i % 10]) + image.transpose(2, 0, 1).tobytes() for i, image in enumerate(IMAGES)]
    inside = folder / "cifar-10-batches-bin"
    inside.mkdir()
    for i in range(1, 6):
        (inside / f"data_batch_{i}.bin").write_bytes(b"".join(rows[4 * i - 4 : 4 * i]))
    (inside / "test_batch.bin").write_bytes(rows[0])
    names = "plane car bird cat deer dog frog horse ship truck"
    (inside / "batches.meta.txt").write_text(names.replace(" ", "\n") + "\n\n")
    return folder


def fashion_mnist(folder):
    """Its four files, unpacked."""
    found = {}
    for split, count in (("train", 20), ("test", 3)):
        found[f"{split}_data"] = folder / f"{split}-images"
        pixels = np.ascontiguousarray(IMAGES[:count, :28, :28, 0])
        found[f"{split}_data"].write_bytes(bytes(16) + pixels.tobytes())
        found[f"{split}_labels"] = folder / f"{split}-labels"
        found[f"{split}_labels"].write_bytes(bytes(8) + bytes(i % 10 for i in range(count)))
    return found


@pytest.mark.parametrize(
    ("name", "download", "size", "channels"),
    [
        ("cifar10", cifar10, 32, 3),
        ("fashion_mnist", fashion_mnist, 28, 1),
    ],
)
def test_a_data_set_of_tfds(name, download, size, channels, tmp_path, monkeypatch):
    """Fabricated downloads, which TFDS prepares and reads as real ones."""
    (tmp_path / "raw").mkdir()
    downloaded = download(tmp_path / "raw")
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", lambda *_: downloaded)
    monkeypatch.setattr(manager, "download", lambda *_: downloaded)
    monkeypatch.setattr("tensorflow_datasets.image_classification.mnist._TRAIN_EXAMPLES", 20)
    monkeypatch.setattr("tensorflow_datasets.image_classification.mnist._TEST_EXAMPLES", 3)
    config = dataclasses.replace(
        DATA, dataset=name, data_dir=str(tmp_path / "data"), train_split="train"
    )
    found = read_images(config, "train", Shape(size, channels))
    expected = IMAGES[:, :size, :size, :channels]
    assert len(found.labels_N) == 20
    for image, label in zip(found.images_NHWC, found.labels_N):
        (i,) = [i for i in range(20) if np.array_equal(expected[i], image)]
        assert label == i % 10
    assert content_sha256(config, "train") == content_sha256(config, "train")
    with pytest.raises(UserError, match=r"the split is 'x', which .* does not have; it has: "):
        read_images(config, "x", SHAPE)


def test_labels_by_name(folder):
    found = read_images(data(folder), "train", SHAPE)
    turned = labels_as(found, ["red", "green", "blue"], "x")
    assert turned.labels_N.tolist() == 3 * [2] + 5 * [0]
    with pytest.raises(UserError, match="x has the class 'blue', which the training images do not"):
        labels_as(found, ["red"], "x")


def test_a_grid():
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    page = grid(images, 2)
    assert page.shape == (10, 10, 1)
    assert page[2, 2, 0] == 0
    assert page[3, 7, 0] == 1
    assert page[7, 3, 0] == 2
    assert page[7, 7, 0] == 255
    assert picture(page)[1:] == (10, 10)
    assert picture(page).png.startswith(b"\x89PNG")
