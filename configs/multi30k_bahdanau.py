"""The RNN with attention of Bahdanau et al. (2015) on Multi30k, in small.

    python train.py --config=configs/multi30k_bahdanau.py --workdir=runs/bahdanau
    python evaluate.py --workdir=runs/bahdanau --split=test

The same data, sizes and optimizer as rnn_conditional.py.
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_conditional


def get_config() -> ConfigDict:
    config = rnn_conditional.get_config()
    config.model.cell = "gated_unit"
    config.model.gate_biases = 1
    config.model.initial_state = "backward"
    config.model.attend = "previous"
    config.model.attention_size = 256
    config.model.attention_bias = True
    config.model.readout = "maxout"
    return config
