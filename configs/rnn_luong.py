"""The LSTM with attention of Luong, Pham and Manning (2015) on WMT14 English-German.

    python train.py --config=configs/rnn_luong.py --workdir=runs/rnn_luong

4 layers of 1,000 cells, the source reversed, global attention with the score "general", input
feeding. For local-p, set --config.model.attention_window=10. Not yet trained here. Theirs is SGD
at 1, halved each epoch after the eighth of 12; here the rate falls linearly. They divide a batch's
gradient by its sentences, we by its target tokens (docs/fidelity.md).
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_sutskever


def get_config() -> ConfigDict:
    config = rnn_sutskever.get_config()
    config.data.dataset = "hf:wmt/wmt14:de-en"
    config.data.target_language = "de"
    config.model.attention = "general"
    config.model.attend = "current"
    config.model.input_feeding = True
    config.model.readout = "attentional"
    config.model.readout_size = 1000
    config.model.readout_bias = False
    # Their code (lmthang/nmt.hybrid) drops parts of the input of each layer, the first among them.
    config.model.embedding_dropout = 0.2
    config.model.layer_dropout = 0.2
    config.model.initialization = "luong"
    config.tokenizer.vocab_size = 50_000
    config.optimizer.peak_learning_rate = 1.0
    config.decoding.beam_size = 10
    return config
