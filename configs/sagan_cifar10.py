"""A small SAGAN on CIFAR-10, or on images of your own; every field of the task.

    python -m transformer feature-classifier --config=configs/sagan_cifar10.py \
        --output=features.npz
    python train.py --config=configs/sagan_cifar10.py --config.task.features=features.npz
    python -m transformer generate --workdir=runs/sagan_cifar10 --grid=samples.png

Takes two to three hours of two CPU cores. Trained here with half as many channels: docs/images.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.task = get_task()
        config.data = get_data()
        config.model = get_model()
        del config.tokenizer, config.decoding

    # The generator's; the discriminator's differs in its rate. No decay of the rate.
    config.optimizer.beta1 = 0.0
    config.optimizer.beta2 = 0.9  # the paper; the authors' code has 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 1e-4
    config.optimizer.warmup_steps = 0

    config.training.steps = 12_000  # of the generator
    # Images: those of all steps of the discriminator in an update.
    config.training.tokens_per_update = 64
    config.training.label_smoothing = 0.0
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 1000  # generates images and measures fid_ours
    # Or discriminator_loss, which needs no classifier and tells little.
    config.training.best_metric = "fid_ours"
    # Of the discriminator's loss, which is 2 at first.
    config.training.max_loss_rise = 10.0
    return config


def get_task() -> ConfigDict:
    task = ConfigDict()
    task.name = "images"
    task.discriminator_steps = 1  # before each step of the generator
    task.discriminator_learning_rate = 4e-4  # two time scales: four times the generator's
    # Images are made with a moving average of the generator; its decay. Until average_from, in
    # updates, it is the generator itself.
    task.average_decay = 0.999
    task.average_from = 1000
    # Batch statistics of the generator that makes images. standing: measured on some batches of
    # its own; running: gathered while it was trained.
    task.statistics = "standing"
    # A grid of samples into WORKDIR/samples and TensorBoard; updates, 0: never. A multiple of
    # training.checkpoint_every.
    task.samples_every = 500
    # The classifier whose features scores are over: a file that
    # python -m transformer feature-classifier writes.
    task.features = placeholder(str)
    # Generated images of a score, compared with as many real ones; no more than half of these
    # are compared, and the other half gives the floor.
    task.num_scored = 1000
    return task


def get_data() -> ConfigDict:
    data = ConfigDict()
    # A TFDS data set with images, its splits, and where TFDS keeps it.
    data.dataset = "cifar10"
    data.data_dir = "~/tensorflow_datasets"
    data.train_split = "train[:90%]"
    data.validation_split = "train[90%:]"
    data.test_split = "test"
    # Your own images instead of `dataset`: a folder with a folder for each class; or an .npz with
    # images [N, H, W, C], bytes, and labels [N]; or an .npy with images alone.
    data.train_images = placeholder(str)
    data.validation_images = placeholder(str)
    data.test_images = placeholder(str)
    # Without validation_images: this part of the training images of each class is held out.
    data.held_out = 0.1
    # Images of another size than model.image_size: refuse; or resize, after cutting off what is
    # beyond a square.
    data.other_sizes = "refuse"
    data.corrupt_files = "refuse"  # or skip: they are named and counted
    data.flip = True  # half of the real images, at random, are mirrored
    return data


def get_model() -> ConfigDict:
    model = ConfigDict()
    model.family = "sagan"
    model.image_size = 32  # or 128
    model.channels = 3  # 1: grey; images are converted
    model.noise_size = 128
    # Channels. Of 32 x 32 pixels those of all blocks; of 128 x 128 those of the largest images,
    # and up to 16 times as many of the smaller ones.
    model.generator_width = 64
    model.discriminator_width = 64
    # paper: as Section 3 has it. released: as the authors' code has it, with keys and values
    # pooled and wider values. none: no attention.
    model.attention = "released"
    model.attention_size = 16  # where it is in both networks: at 16 x 16 pixels
    model.dtype = "float32"
    return model
