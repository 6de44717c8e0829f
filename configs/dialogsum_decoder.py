"""DialogSum with a decoder-only Transformer (T-D); see configs/dialogsum.py for the commands.

    python train.py --config=configs/dialogsum_decoder.py --workdir=runs/dialogsum_decoder \
        --config.data.train_file=dialogsum.train.jsonl \
        --config.data.validation_file=dialogsum.dev.jsonl

Sized for 90 minutes of two cores. Not yet trained here.
"""

from ml_collections import ConfigDict

from configs import dialogsum, t_dmca


def get_config() -> ConfigDict:
    config = dialogsum.get_config()
    with config.unlocked():
        config.model = t_dmca.get_model()
    config.model.layers = "FFFFF"
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.dropout = 0.2
    # An update takes longer than an encoder-decoder's: the loss of a whole row is over 680 tokens.
    config.training.steps = 2400
    config.training.checkpoint_every = 200
    config.training.full_validation_every = 600
    return config
