"""Arrays of pixels as PNG files, and images of other kinds as pixels of eight bits."""

import io
from typing import NamedTuple

import numpy as np
from PIL import Image

BORDER = 2  # pixels between the images of a grid


class Picture(NamedTuple):
    """An RGB image as a PNG file."""

    png: bytes
    height: int
    width: int


def picture(image_HWC: np.ndarray) -> Picture:
    """A PNG of an image of bytes; grey images (C = 1) become RGB."""
    rgb_HWC = np.broadcast_to(image_HWC, (*image_HWC.shape[:2], 3))
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rgb_HWC)).save(file, "png")
    return Picture(file.getvalue(), *rgb_HWC.shape[:2])


def grid(images_NHWC: np.ndarray, columns: int) -> np.ndarray:
    """One image of all images, row by row, on white."""
    N, H, W, C = images_NHWC.shape
    rows = -(-N // columns)
    shape = rows * (H + BORDER) + BORDER, columns * (W + BORDER) + BORDER, C
    page = np.full(shape, 255, np.uint8)
    for n, image in enumerate(images_NHWC):
        y = BORDER + n // columns * (H + BORDER)
        x = BORDER + n % columns * (W + BORDER)
        page[y : y + H, x : x + W] = image
    return page


def of_eight_bits(image: Image.Image) -> Image.Image:
    """Scales grey pixels of 16 bits down; Pillow would turn all above 255 white."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of Pillow's mode {image.mode}; give them 8 bits")
    return image


def on_white(image: Image.Image) -> Image.Image:
    """Puts an image on white. Transparent pixels have a hidden colour, often black."""
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
