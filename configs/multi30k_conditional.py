"""The conditional GRU of nmtpy on Multi30k; published with 39.00 BLEU.

    python train.py --config=configs/multi30k_conditional.py --workdir=runs/conditional
    python evaluate.py --workdir=runs/conditional --split=test --checkpoint=average \\
        --average_last=10

The text-only model of the LIUM's entry to WMT17 (their code: lium-lst/wmt17-mmt), one run: BLEU
39.17 on validation, 39.00 on test_2016_flickr, 31.25 on test_2017_flickr. 128 and 256 units,
10,000 joint merges, dropout of 0.3 (source embeddings), 0.5 (annotations) and 0.5 (readout), Adam
at 4e-4, batches of 32 pairs. Unlike theirs, the encoder has no layer normalisation, and target
words are dropped, too (docs/fidelity.md). rnn_conditional.py is the decoder of nmtpytorch.

Here, in bfloat16: 39.9 on validation, 38.2 on test_2016_flickr (RESULTS.md).
"""

from ml_collections import ConfigDict

from transformer.configs import rnn_conditional


def get_config() -> ConfigDict:
    config = rnn_conditional.get_config()
    config.model.gate_biases = 1
    config.model.attention_bias = True
    config.model.readout = "deep"
    config.model.share_embeddings = "none"
    config.optimizer.peak_learning_rate = 1.5e-3
    config.optimizer.warmup_steps = 1000
    config.optimizer.decay_steps = 20_000
    config.training.steps = 20_000
    config.training.tokens_per_update = 1024
    config.training.checkpoint_every = 400
    config.training.full_validation_every = 4000
    return config
