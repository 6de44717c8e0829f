"""A small English-German model of everyday sentences: the one that comes with the project.

    python train.py --config=configs/everyday_en_de.py --workdir=runs/everyday-en-de
    python evaluate.py --workdir=runs/everyday-en-de --split=validation --checkpoint=average

Needs data/tatoeba-de: train.en.gz, train.de.gz, validation.en.gz and validation.de.gz, 165,000 and
1,000 pairs of sentences of Tatoeba (manythings.org/anki). docs/pretrained.md has more.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.train_source = "data/tatoeba-de/train.en.gz"
    config.data.train_target = "data/tatoeba-de/train.de.gz"
    config.data.validation_source = "data/tatoeba-de/validation.en.gz"
    config.data.validation_target = "data/tatoeba-de/validation.de.gz"
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
