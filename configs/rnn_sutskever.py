"""The deep LSTM without attention of Sutskever, Vinyals and Le (2014) on WMT14 English-French.

    python train.py --config=configs/rnn_sutskever.py --workdir=runs/rnn_sutskever

4 layers of 1,000 cells, the source reversed: 30.59 BLEU with a beam of 12 (theirs: words,
160,000 and 80,000 of them). Not yet trained here. Theirs is SGD at 0.7, halved each half epoch
after the fifth; here the rate falls linearly. They divide a batch's gradient by its sentences, we
by its target tokens. So the same rate makes smaller updates here (docs/fidelity.md).
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_bahdanau


def get_config() -> ConfigDict:
    config = rnn_bahdanau.get_config()
    config.model.embedding_size = 1000
    config.model.num_layers = 4
    config.model.cell = "lstm"
    config.model.gate_biases = 0
    config.model.encoder = "reversed"
    config.model.initial_state = "copy"
    config.model.attention = "none"
    config.model.attention_bias = False
    config.model.readout = "state"
    config.model.initialization = "sutskever"
    config.tokenizer.vocab_size = 80_000
    config.optimizer.name = "sgd"
    config.optimizer.beta1 = 0.0
    config.optimizer.schedule = "linear"
    config.optimizer.peak_learning_rate = 0.7
    config.optimizer.warmup_steps = 0
    config.optimizer.decay_steps = config.training.steps
    config.optimizer.max_grad_norm = 5.0
    config.decoding.beam_size = 12
    return config
