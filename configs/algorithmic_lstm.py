"""An LSTM with attention on digits to copy, to reverse or to add (docs/algorithmic.md).

    python train.py --config=configs/algorithmic_lstm.py --workdir=runs/copy_lstm
    python evaluate.py --workdir=runs/copy_lstm --split=test,test_400

The attention is that of Luong et al. (2015) with input feeding.
"""

from ml_collections import ConfigDict

from transformer.configs import algorithmic, rnn_luong


def get_config() -> ConfigDict:
    config = algorithmic.get_config()
    with config.unlocked():
        config.model = rnn_luong.get_config().model
    config.model.embedding_size = 128
    config.model.hidden_size = 256
    config.model.num_layers = 1
    config.model.readout_size = 256
    config.model.gate_biases = 1
    config.model.embedding_dropout = 0.0
    config.model.layer_dropout = 0.0
    config.model.initialization = "glorot"
    config.optimizer.max_grad_norm = 5.0
    return config
