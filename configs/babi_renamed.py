"""babi_universal.py trained further, with renamed copies of the training questions.

In each copy, names, rooms, directions, ... are swapped: docs/algorithmic.md.

    python train.py --config=configs/babi_renamed.py --config.data.raw_dir=babi \\
        --config.training.init_from=runs/babi_universal --workdir=runs/babi_renamed
    python evaluate.py --workdir=runs/babi_renamed --split=test

From a run with adaptive computation time it needs the same flags as that run.
"""

from ml_collections import ConfigDict

from transformer.configs import babi_universal


def get_config() -> ConfigDict:
    config = babi_universal.get_config()
    config.data.dataset = "babi/en-renamed"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.decay_steps = 50_000
    config.training.steps = 50_000
    return config
