"""A Universal Transformer on bAbI, beside babi.py: four steps in place of its four layers.

It also has twice the updates, and counts source positions from both ends.

    python train.py --config=configs/babi_universal.py --config.data.raw_dir=babi \\
        --workdir=runs/babi_universal
    python evaluate.py --workdir=runs/babi_universal --split=test

With adaptive computation time: --config.model.halting=paper --config.model.ponder_weight=0.0001.
docs/algorithmic.md says what the models learned.
"""

from ml_collections import ConfigDict

from transformer.configs import babi, universal_base


def get_config() -> ConfigDict:
    config = babi.get_config()
    of_babi = config.model
    with config.unlocked():
        config.model = universal_base.get_model()
    for field in config.model:
        if field in of_babi and field != "family":
            config.model[field] = of_babi[field]
    config.model.encoder_steps = 4
    config.model.decoder_steps = 4
    # Half of the channels count from the question, so that the latest fact is easy to find.
    config.model.count_from = "both_ends"
    config.optimizer.decay_steps = 60_000
    config.training.steps = 60_000
    return config
