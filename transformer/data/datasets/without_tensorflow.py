"""Python replacements for the parts of TensorFlow with which TFDS builders prepare data."""

import contextlib
import io
import os
import sys
import types
from collections.abc import Iterator
from typing import IO

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.features.image_feature import _ImageEncoder


@contextlib.contextmanager
def without_tensorflow(builder: tfds.core.DatasetBuilder) -> Iterator[None]:
    """Lets a builder read its files, and write images."""
    module, encode_image = sys.modules[type(builder).__module__], _ImageEncoder._encode_image
    tensorflow = vars(module).get("tf")
    if tensorflow is not None:
        gfile = {"GFile": _open_utf8, "listdir": os.listdir, "exists": os.path.exists}
        module.tf = types.SimpleNamespace(
            io=types.SimpleNamespace(gfile=types.SimpleNamespace(**gfile))
        )
    _ImageEncoder._encode_image = _encode_image
    try:
        yield
    finally:
        _ImageEncoder._encode_image = encode_image
        if tensorflow is not None:
            module.tf = tensorflow


def _open_utf8(path: str | os.PathLike, mode: str = "r") -> IO[str]:
    # TensorFlow ends lines only at line feeds.
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", errors="replace", newline="\n")


def _encode_image(encoder: _ImageEncoder, image_HWC: np.ndarray) -> bytes:
    array = image_HWC[..., 0] if image_HWC.shape[-1] == 1 else image_HWC
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(file, encoder.encoding_format)
    return file.getvalue()
