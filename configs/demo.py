"""A small Transformer on the built-in English-German grammar.

The config of `python train.py` without flags:

    python train.py
    python evaluate.py --workdir=runs/demo

2 CPU cores: 3 minutes, BLEU 96 on the test split.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.dataset = "grammar_en_de"
    config.data.max_source_length = 64
    config.data.max_target_length = 64
    config.tokenizer.vocab_size = 1800
    config.model.num_encoder_layers = 2
    config.model.num_decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 6.6e-3
    config.optimizer.warmup_steps = 300
    config.training.steps = 1000
    config.training.tokens_per_update = 1792
    config.training.log_every = 20
    config.training.checkpoint_every = 250
    config.training.full_validation_every = 250
    return config
