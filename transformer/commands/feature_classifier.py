"""Trains the classifier whose features FID-ours and KID-ours use.

    python -m transformer feature-classifier --config=configs/sagan_cifar10.py \\
        --config.data.train_images=cifar10 --output=features.npz

It trains on the images that a run with this config would train on, and its accuracy is measured on
the images that such a run holds out. Then give the file to runs as task.features.
"""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from transformer import configs
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

DEFAULT = configs.FOLDER / "sagan_cifar10.py"

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A config of the task images (default: configs/sagan_cifar10.py)."
)
OUTPUT = DEFINE_path("output", "features.npz", "The file to write.")
EPOCHS = flags.DEFINE_integer("epochs", 5, "How often each image is seen.", 1, 10_000)
SEED = flags.DEFINE_integer("seed", 0, "Of initial values and order.", 0, 2**32 - 1)


def main() -> None:
    from transformer.runs import cli
    from transformer.runs.run_config import Config
    from transformer.system.files import check_can_write
    from transformer.tasks.feature_classifier import FeatureClassifier, train_classifier

    config = Config.from_dict(cli.config_of(CONFIG))
    if config.task.name != "images":
        raise UserError(f"--config is of the task {config.task.name}; give one of images")
    path = Path(OUTPUT.value).expanduser()
    check_can_write(path, ".npz")
    FeatureClassifier.save(path, *train_classifier(config, EPOCHS.value, SEED.value))
    print(f"wrote {path}: {FeatureClassifier.load(path).words}")
