"""A small English-German model of everyday sentences, for the model that comes with the project.

    python train.py --config=configs/everyday_en_de.py --workdir=runs/everyday-en-de \
        --config.data.train_source=FOLDER/train.en.gz --config.data.train_target=FOLDER/train.de.gz \
        --config.data.validation_source=FOLDER/validation.en.gz \
        --config.data.validation_target=FOLDER/validation.de.gz
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.max_source_length = 64
    config.data.max_target_length = 64
    config.tokenizer.vocab_size = 5000
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 2
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.warmup_steps = 500
    config.training.steps = 8000
    config.training.tokens_per_update = 2048
    config.training.log_every = 100
    config.training.checkpoint_every = 250
    config.training.full_validation_every = 2000
    config.training.keep_last = 10
    return config
