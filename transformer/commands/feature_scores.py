"""Scores images by features of your own, such as those of an Inception network.

    python -m transformer feature-scores --real=real.npz --generated=generated.npz

Each file has one array of features [N, D], or several; --real_array and --generated_array then name
one. For a run of the task images, evaluate.py writes both kinds of images, generated.npz and
real.npz, to WORKDIR/eval/<split>, and the features of our classifier to features.npz. Comparing one
half of the real features with the other gives the floor.
"""

from pathlib import Path

import numpy as np
from absl import flags

from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

# Scores multiply up to six features in float64.
LARGEST = float(np.finfo(np.float32).max)

REAL = DEFINE_path("real", None, "Features of real images, .npz or .npy.")
GENERATED = DEFINE_path("generated", None, "Features of generated images.")
REAL_ARRAY = flags.DEFINE_string("real_array", None, "Which array of --real.")
GENERATED_ARRAY = flags.DEFINE_string("generated_array", None, "Which array of --generated.")


def read_features(flag: str, path: str | None, name: str | None) -> np.ndarray:
    from transformer.data.labelled_images import load_arrays
    from transformer.metrics.image_scores import NEIGHBOURS

    if path is None:
        raise UserError(f"--{flag} is missing; give an .npz of features")
    arrays = load_arrays(Path(path).expanduser())
    if not arrays:
        raise UserError(f"--{flag}={path} has no arrays; give an .npz of features")
    if (name is None and len(arrays) > 1) or (name is not None and name not in arrays):
        raise UserError(f"--{flag}_array: {path} has {', '.join(arrays)}; name one of them")
    found = arrays[name or next(iter(arrays))]
    if found.ndim != 2 or found.dtype.kind != "f" or not found.size:
        raise UserError(
            f"--{flag}={path} has shape {found.shape} and type {found.dtype}; it must be [N, D] of "
            "finite numbers, and neither N nor D 0"
        )
    if not np.abs(found).max() <= LARGEST:
        raise UserError(
            f"--{flag}={path} has numbers that are not finite, or beyond {LARGEST:.1e}; remove them"
        )
    if len(found) <= 2 * NEIGHBOURS + 2:
        raise UserError(f"--{flag}={path} has {len(found)} rows; give more")
    return found


def main() -> None:
    from transformer.metrics.image_scores import image_scores

    real = read_features("real", REAL.value, REAL_ARRAY.value)
    made = read_features("generated", GENERATED.value, GENERATED_ARRAY.value)
    if real.shape[1] != made.shape[1]:
        raise UserError(
            f"--real has {real.shape[1]} features and --generated {made.shape[1]}; give those of "
            "one network"
        )
    order = np.random.default_rng(0).permutation(len(real))
    half = len(real) // 2
    found = image_scores(
        real[order[:half]], real[order[half : 2 * half]], made, "features that were given"
    )
    for name, score in found.items():
        print(f"{name.replace('_ours', ''):12} {score['score']:10.4f}  {score['definition']}")
