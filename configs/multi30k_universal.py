"""A Universal Transformer on Multi30k, beside the Transformer-Tiny of multi30k_tiny.py.

    python train.py --config=configs/multi30k_universal.py --workdir=runs/universal
    python evaluate.py --workdir=runs/universal --split=test

One layer a side, twice as wide as Transformer-Tiny's four, applied four times. With adaptive
computation time: --config.model.halting=paper.
"""

from ml_collections import ConfigDict

from transformer.configs import multi30k_tiny, universal_base


def get_config() -> ConfigDict:
    config = multi30k_tiny.get_config()
    with config.unlocked():
        config.model = universal_base.get_model()
    config.model.d_model = 256
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.encoder_steps = 4
    config.model.decoder_steps = 4
    config.model.attention_dropout = 0.0
    config.model.activation_dropout = 0.0
    config.optimizer.schedule = "cosine"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.decay_steps = 4000
    config.training.steps = 4000
    config.training.tokens_per_update = 4096
    config.training.checkpoint_every = 100
    config.training.full_validation_every = 1000
    return config
