"""The RNN with attention of Bahdanau, Cho and Bengio (2015) on WMT14; every field RNNs have.

    python train.py --config=configs/rnn_bahdanau.py --workdir=runs/rnn_bahdanau

Their "RNNsearch" with the sizes of Appendix A: 28.45 BLEU English to French (theirs: words, no
BPE). Not yet trained here. Optimizer and schedule are ours: they used Adadelta, batches of 80
sentences and gradients clipped to a norm of 1.
"""

from ml_collections import ConfigDict

from transformer.configs import base_en_fr


def get_config() -> ConfigDict:
    config = base_en_fr.get_config()
    with config.unlocked():
        config.model = get_model()
    config.tokenizer.vocab_size = 30_000
    config.tokenizer.joint = False
    config.data.max_source_length = 50
    config.data.max_target_length = 50
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 3e-4
    config.optimizer.max_grad_norm = 1.0
    config.training.label_smoothing = 0.0

    config.decoding.length_penalty = 0.0  # the paper has none
    return config


def get_model() -> ConfigDict:
    model = ConfigDict()
    model.family = "rnn"
    model.embedding_size = 620  # of words, on both sides
    model.hidden_size = 1000  # of each direction of the encoder, and of the decoder
    model.num_layers = 1  # of the encoder, and of the decoder
    # gated_unit: the paper's, whose update gate weighs the new state and whose reset gate acts
    # before the product. gru: that of cuDNN and PyTorch. lstm.
    model.cell = "gated_unit"
    model.gate_biases = 1  # biases of each gate: 0, 1, or 2 as cuDNN has them
    model.encoder = "bidirectional"  # or forward, or reversed: from the end of the source
    # The decoder's first state. copy: the encoder's last states, layer by layer. Or a tanh layer
    # on: backward, the last state of that direction; both directions' last states; the mean of
    # the annotations.
    model.initial_state = "backward"
    # additive (Luong's "concat"), dot or general; none; or fixed, the encoder's last state at each
    # step (Cho et al. 2014).
    model.attention = "additive"
    # Which state asks: previous, the one before this step, which then sees the context; current,
    # the one after; between, that between two cells of a step (conditional GRU).
    model.attend = "previous"
    model.attention_size = 1000  # hidden units of additive
    model.attention_bias = True  # in additive
    model.attention_window = 0  # D of Luong's local-p; 0: global
    model.input_feeding = False  # the readout is an input of the next step
    # What the softmax layer sees. state; concat, of state, context and word; or readout_size
    # units: tanh of the state, attentional (tanh of state and context), deep (tanh of state,
    # context and word), maxout of the state before, word and context.
    model.readout = "maxout"
    model.readout_size = 500  # units, if readout is none of state and concat
    model.readout_bias = True  # of the readout units
    model.output_bias = False  # of the softmax layer
    # Which of source embedding, target embedding and softmax layer share one matrix: all; decoder
    # (the latter two); none.
    model.share_embeddings = "none"
    model.embedding_dropout = 0.0  # of embeddings
    model.layer_dropout = 0.0  # between layers
    model.memory_dropout = 0.0  # of the annotations
    model.output_dropout = 0.0  # of the readout
    # bahdanau, sutskever, luong: as the papers begin. glorot: the field's usual one.
    model.initialization = "bahdanau"
    model.dtype = "float32"  # of activations; or bfloat16
    return model
