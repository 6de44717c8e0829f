"""`universal_base` with adaptive computation time: up to 12 steps, halting as in the paper.

    python train.py --config=configs/universal_act_base.py --workdir=runs/universal_act_base

Twice as many steps as without halting, as in Tensor2Tensor. Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import universal_base


def get_config() -> ConfigDict:
    config = universal_base.get_config()
    config.model.halting = "paper"
    config.model.encoder_steps = 12
    config.model.decoder_steps = 12
    return config
