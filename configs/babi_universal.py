"""A Universal Transformer with adaptive computation time on bAbI, beside babi.py.

    python train.py --config=configs/babi_universal.py --config.data.raw_dir=babi \\
        --workdir=runs/babi_universal
    python evaluate.py --workdir=runs/babi_universal --split=test

The sizes are those of algorithmic_universal.py. It has less dropout than babi.py, and more updates.
Each position came to take one step: docs/algorithmic.md.
"""

from ml_collections import ConfigDict

from configs import algorithmic_universal, babi


def get_config() -> ConfigDict:
    config = babi.get_config()
    with config.unlocked():
        config.model = algorithmic_universal.get_config().model
    config.model.words_per_position = 12
    config.model.halting = "paper"
    # Test stories are hardly longer than those of training.
    config.model.random_start = 0
    config.model.random_stride = 1
    config.model.dropout = 0.1
    config.optimizer.decay_steps = 10_000
    config.training.steps = 10_000
    return config
