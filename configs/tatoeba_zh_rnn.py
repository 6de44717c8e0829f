"""The RNN with attention of Bahdanau, Cho and Bengio (2015) on tatoeba_zh's sentences.

    python train.py --config=configs/tatoeba_zh_rnn.py --config.data.raw_dir=FOLDER \
        --workdir=runs/en-zh-rnn
    python evaluate.py --workdir=runs/en-zh-rnn --split=test

The other direction and FOLDER are as in tatoeba_zh.py. Small sizes, Glorot's initial values.
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_bahdanau, tatoeba_zh


def get_config() -> ConfigDict:
    config = tatoeba_zh.get_config()
    with config.unlocked():
        config.model = rnn_bahdanau.get_model()
    config.model.embedding_size = 192
    config.model.hidden_size = 256
    config.model.attention_size = 192
    config.model.readout_size = 192
    config.model.embedding_dropout = 0.3
    config.model.memory_dropout = 0.3
    config.model.output_dropout = 0.3
    config.model.initialization = "glorot"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.max_grad_norm = 1.0
    return config
