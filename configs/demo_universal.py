"""A Universal Transformer with adaptive computation time on the data of the demo.

python train.py --config=configs/demo_universal.py
python evaluate.py --workdir=runs/demo_universal
"""

from ml_collections import ConfigDict

from transformer.configs import demo, universal_base


def get_config() -> ConfigDict:
    config = demo.get_config()
    with config.unlocked():
        config.model = universal_base.get_model()
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.0
    config.model.activation_dropout = 0.0
    config.model.halting = "paper"
    config.model.encoder_steps = 4
    config.model.decoder_steps = 4
    return config
