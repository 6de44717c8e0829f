"""The LSTM with attention and input feeding of Luong et al. (2015) on Multi30k, in small.

    python train.py --config=configs/multi30k_luong.py --workdir=runs/luong
    python evaluate.py --workdir=runs/luong --split=test

The same data, sizes and optimizer as rnn_conditional.py; two layers and the source reversed.
Here, in bfloat16: 33.6 on validation, 33.2 on test_2016_flickr (RESULTS.md).
"""

from ml_collections import ConfigDict

from transformer.configs import multi30k_lstm


def get_config() -> ConfigDict:
    config = multi30k_lstm.get_config()
    config.model.attention = "general"
    config.model.attend = "current"
    config.model.input_feeding = True
    config.model.readout = "attentional"
    config.model.readout_size = 256
    config.model.readout_bias = False
    config.model.share_embeddings = "none"
    config.model.memory_dropout = 0.5
    return config
