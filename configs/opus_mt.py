"""A public OPUS-MT model, trained further (docs/exporting.md).

    python -m transformer import-marian --folder=opus-mt-en-de --output=models/opus-en-de
    python train.py --config=configs/opus_mt.py --config.training.init_from=models/opus-en-de \
        --config.data.dataset=multi30k/en-de --workdir=runs/opus-multi30k

The sizes are those of most OPUS-MT models. tokenizer.vocab_size differs from model to model; the
import prints it.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()

    config.tokenizer.model_type = "unigram"
    config.tokenizer.vocab_size = 58_102  # of opus-mt-en-de

    config.model.activation = "swish"
    config.model.attention_bias = True
    config.model.norm_epsilon = 1e-5
    config.model.output_bias = True

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
