"""The conditional GRU of nmtpytorch on Multi30k: attention between two GRUs of a step.

    python train.py --config=configs/rnn_conditional.py --workdir=runs/conditional
    python evaluate.py --workdir=runs/conditional --split=test

Its readout sees the state alone, and its softmax layer is the matrix of the target words. Sizes and
dropout are those of nmtpy's model, which has a published BLEU: multi30k_conditional.py.

Here, in bfloat16, after 11,499 updates: 38.5 on validation, 37.4 on test_2016_flickr (RESULTS.md).
"""

from ml_collections import ConfigDict

from transformer.configs import multi30k_tiny, rnn_bahdanau


def get_config() -> ConfigDict:
    config = multi30k_tiny.get_config()
    with config.unlocked():
        config.model = rnn_bahdanau.get_model()
    config.model.embedding_size = 128
    config.model.hidden_size = 256
    config.model.cell = "gru"
    config.model.gate_biases = 2
    config.model.initial_state = "mean"
    config.model.attend = "between"
    config.model.attention_size = 512
    config.model.attention_bias = False
    config.model.readout = "tanh"
    config.model.readout_size = 128
    config.model.share_embeddings = "decoder"
    config.model.output_bias = True
    config.model.embedding_dropout = 0.3
    config.model.memory_dropout = 0.5
    config.model.output_dropout = 0.5
    config.model.initialization = "glorot"
    config.optimizer.beta2 = 0.999
    config.optimizer.schedule = "cosine"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.decay_steps = 8000
    config.optimizer.max_grad_norm = 5.0
    config.training.tokens_per_update = 2048
    config.training.checkpoint_every = 200
    config.training.full_validation_every = 2000
    return config
