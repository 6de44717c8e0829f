"""A public OPUS-MT model, trained further (docs/exporting.md).

    python train.py --config=configs/opus_mt.py --config.training.init_from=opus-mt-en-de \
        --config.data.dataset=multi30k/en-de --workdir=runs/opus-multi30k

opus-mt-en-de is a folder of the Hugging Face hub; model and vocabulary are the folder's.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.tokenizer.model_type = "unigram"

    # A small rate: the model has been trained.
    config.optimizer.schedule = "linear"
    config.optimizer.peak_learning_rate = 3e-5
    config.optimizer.warmup_steps = 200
    config.optimizer.decay_steps = 4000
    config.training.steps = 4000
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 500
    config.training.tokens_per_update = 8192
    return config
