"""RNNs without attention on Multi30k: the deep LSTM of Sutskever et al. (2014), in small.

    python train.py --config=configs/multi30k_lstm.py --workdir=runs/lstm
    python evaluate.py --workdir=runs/lstm --split=test

The same data, sizes and optimizer as rnn_conditional.py; two layers and the source reversed.
Here, in bfloat16: 20.3 on validation, 21.0 on test_2016_flickr (RESULTS.md).
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_conditional


def get_config() -> ConfigDict:
    config = rnn_conditional.get_config()
    config.model.num_layers = 2
    config.model.cell = "lstm"
    config.model.gate_biases = 1
    config.model.encoder = "reversed"
    config.model.initial_state = "copy"
    config.model.attention = "none"
    config.model.attend = "previous"
    config.model.layer_dropout = 0.3
    config.model.memory_dropout = 0.0
    return config
