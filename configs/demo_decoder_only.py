"""A decoder-only Transformer on the data of the demo: source and target are one sequence.

python train.py --config=configs/demo_decoder_only.py
python evaluate.py --workdir=runs/demo_decoder_only
"""

from ml_collections import ConfigDict

from transformer.configs import demo, t_dmca


def get_config() -> ConfigDict:
    config = demo.get_config()
    with config.unlocked():
        config.model = t_dmca.get_model()
    config.model.layers = "FFFF"
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    return config
