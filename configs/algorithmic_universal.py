"""A Universal Transformer on digits to copy, to reverse or to add (docs/algorithmic.md).

    python train.py --config=configs/algorithmic_universal.py --workdir=runs/copy_universal
    python evaluate.py --workdir=runs/copy_universal --split=test,test_400

With adaptive computation time: --config.model.halting=paper. To reverse digits:
--config.data.dataset=algorithmic/reverse --config.model.count_from=both_ends. To add:
--config.data.dataset=algorithmic/addition --config.model.count_from=separator
--config.model.separator=14.

In training the positions of a row begin at a random number and are a random number apart, so that
those of test sequences, ten times as long, have been seen.
"""

from ml_collections import ConfigDict

from transformer.configs import algorithmic, universal_base


def get_config() -> ConfigDict:
    config = algorithmic.get_config()
    with config.unlocked():
        config.model = universal_base.get_model()
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.encoder_steps = 4
    config.model.decoder_steps = 4
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0
    config.model.activation_dropout = 0.0
    config.model.random_start = 400
    config.model.random_stride = 10
    return config
