"""The paper's big model on WMT14 English-German.

    python train.py --config=configs/big.py --workdir=runs/big
    python evaluate.py --workdir=runs/big --checkpoint=average --average_last=20

The paper: 8 P100 GPUs, 3.5 days; 28.4 tokenised, compound-split BLEU on newstest2014 with
the last 20 checkpoints averaged. Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout = 0.3
    config.training.steps = 300_000
    config.training.checkpoint_every = 600
    config.training.full_validation_every = 6000
    config.training.keep_last = 20
    return config
