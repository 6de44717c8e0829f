"""The RNN with attention of Bahdanau, Cho and Bengio (2015) on the data of the demo.

    python train.py --config=configs/demo_rnn.py
    python evaluate.py --workdir=runs/demo_rnn

Small sizes, and Glorot's initial values: from the paper's a short training with Adam hardly moves.
2 CPU cores: 4 minutes, BLEU 97.8 on the test split.
"""

from ml_collections import ConfigDict

from transformer.configs import demo, rnn_bahdanau


def get_config() -> ConfigDict:
    config = demo.get_config()
    with config.unlocked():
        config.model = rnn_bahdanau.get_model()
    config.model.embedding_size = 128
    config.model.hidden_size = 192
    config.model.attention_size = 128
    config.model.readout_size = 128
    config.model.embedding_dropout = 0.1
    config.model.memory_dropout = 0.1
    config.model.output_dropout = 0.1
    config.model.initialization = "glorot"
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.max_grad_norm = 1.0
    return config
