"""A Universal Transformer with adaptive computation time on bAbI, beside babi.py.

    python train.py --config=configs/babi_universal.py --config.data.raw_dir=babi \\
        --workdir=runs/babi_universal
    python evaluate.py --workdir=runs/babi_universal --split=test

The sizes are those of algorithmic_universal.py, the dropout that of babi.py. Not yet trained here.
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
    config.model.dropout = 0.2
    return config
