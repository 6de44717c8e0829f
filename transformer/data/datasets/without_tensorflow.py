"""What builders of TFDS's images need of TensorFlow to prepare them, in Python."""

import io
import sys
import types

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core.features import image_feature


def replace_tensorflow(builder: tfds.core.DatasetBuilder) -> None:
    """Lets a builder open files and write images without TensorFlow."""
    module = sys.modules[type(builder).__module__]
    if hasattr(module, "tf"):
        gfile = types.SimpleNamespace(GFile=open)
        module.tf = types.SimpleNamespace(io=types.SimpleNamespace(gfile=gfile))
    image_feature._ImageEncoder._encode_image = _encode_image


def _encode_image(encoder: image_feature._ImageEncoder, image_HWC: np.ndarray) -> bytes:
    array = image_HWC[..., 0] if image_HWC.shape[-1] == 1 else image_HWC
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(file, encoder.encoding_format)
    return file.getvalue()
