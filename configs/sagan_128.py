"""The paper's SAGAN: images of 128 x 128 pixels, attention at 32 x 32, two time scales.

    python train.py --config=configs/sagan_128.py --config.data.train_images=images \
        --config.task.features=features.npz

The paper: ImageNet, a million updates of 256 images, about two weeks on four GPUs; FID 18.65 over
Inception features, which are not here: docs/images.md. Not yet trained here. All images are kept
in memory, 49 KB each.
"""

from ml_collections import ConfigDict

from transformer.configs import sagan_cifar10


def get_config() -> ConfigDict:
    config = sagan_cifar10.get_config()
    config.model.image_size = 128
    config.model.attention_size = 32
    config.model.attention = "paper"
    config.data.other_sizes = "resize"
    config.training.steps = 1_000_000
    config.training.tokens_per_update = 256
    config.training.checkpoint_every = 5000
    config.training.full_validation_every = 25_000
    config.task.samples_every = 5000
    config.task.num_scored = 5000
    config.task.average_from = 2000
    return config
