"""A Transformer of a billion parameters, for several GPUs or TPUs; not from a paper.

    python train.py --config=configs/xl.py --config.mesh.fsdp=8 --workdir=runs/xl

8 + 8 layers twice as wide as big: 1,015,635,968 parameters with a vocabulary of 37,000. Layers are
pre-LN, since post-LN of this size does not train without further means. Not yet trained here.
docs/scaling.md has what it needs of 8 and 16 GPUs.
"""

from ml_collections import ConfigDict

from transformer.configs import big


def get_config() -> ConfigDict:
    config = big.get_config()
    config.model.num_encoder_layers = 8
    config.model.num_decoder_layers = 8
    config.model.d_model = 2048
    config.model.d_ff = 8192
    config.model.norm = "pre"
    config.model.dropout = 0.1
    config.model.dtype = "bfloat16"
    config.training.tokens_per_update = 200_000
    return config
