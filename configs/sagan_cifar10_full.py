"""SAGAN on CIFAR-10 in the size of Miyato et al. 2018, with the updates of PyTorch-StudioGAN.

    python train.py --config=configs/sagan_cifar10_full.py --config.task.features=features.npz

StudioGAN publishes FID 14.7 for these settings, over Inception features, which are not here:
docs/images.md. Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import sagan_cifar10


def get_config() -> ConfigDict:
    config = sagan_cifar10.get_config()
    config.model.generator_width = 256
    config.model.discriminator_width = 128
    config.task.discriminator_steps = 5
    config.task.discriminator_learning_rate = 2e-4
    config.optimizer.peak_learning_rate = 2e-4
    config.optimizer.beta1 = 0.5
    config.optimizer.beta2 = 0.999
    config.training.steps = 100_000
    config.training.tokens_per_update = 5 * 64
    config.training.checkpoint_every = 2000
    config.training.full_validation_every = 10_000
    config.task.samples_every = 2000
    config.task.num_scored = 2500
    return config
