"""The Universal Transformer of babi_universal.py, with renamed copies of the training questions.

In each copy, names, places, directions, ... have changed places: docs/algorithmic.md.

    python train.py --config=configs/babi_renamed.py --config.data.raw_dir=babi \\
        --workdir=runs/babi_renamed
    python evaluate.py --workdir=runs/babi_renamed --split=test

With adaptive computation time: --config.model.halting=paper --config.model.ponder_weight=0.0001.
"""

from ml_collections import ConfigDict

from configs import babi_universal


def get_config() -> ConfigDict:
    config = babi_universal.get_config()
    config.data.dataset = "babi/en-renamed"
    # Three times as many questions as in babi/en, and they are not soon learned by heart.
    config.optimizer.decay_steps = 100_000
    config.training.steps = 100_000
    return config
