"""The parser of Vinyals et al. (2015) in small: an RNN with attention, on GENIA.

    python train.py --config=configs/parsing_rnn.py --config.data.raw_dir=genia \\
        --workdir=runs/genia-rnn
    python evaluate.py --workdir=runs/genia-rnn --split=validation --brackets

As theirs: an LSTM that reads the sentence from its end, with attention, and dropout. Theirs has
three layers of 256 in each direction; sizes here are those of our other small models. Data and
training are those of parsing_small.py. Not yet trained to the end: no score is known.
"""

from ml_collections import ConfigDict

from configs import parsing_small, rnn_bahdanau


def get_config() -> ConfigDict:
    config = parsing_small.get_config()
    config.unlock()
    config.model = rnn_bahdanau.get_config().model
    config.lock()
    config.data.reverse_source = True
    config.model.embedding_size = 128
    config.model.hidden_size = 256
    config.model.attention_size = 256
    config.model.readout_size = 256
    config.model.cell = "lstm"
    config.model.encoder = "bidirectional"
    config.model.share_embeddings = "none"
    config.model.embedding_dropout = 0.2
    config.model.memory_dropout = 0.2
    config.model.output_dropout = 0.2
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.max_grad_norm = 1.0
    return config
