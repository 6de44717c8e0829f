"""The published Transformer-Tiny on Multi30k: 41.02 tokenised, lower-cased BLEU.

    python train.py --config=configs/multi30k_tiny.py --workdir=runs/tiny
    python evaluate.py --workdir=runs/tiny --split=test --checkpoint=average --average_last=10

The recipe of Wu et al., "Good for Misconceived Reasons", ACL 2021 (their code: fairseq's
transformer_tiny): the authors' tokenised text, 10,000 joint merges, 4 + 4 layers of 128,
dropout 0.3, two GPUs of 4,096 tokens, at most 8,000 updates. Which of the best checkpoint and
the average of the last 10 is tested: that with the higher validation BLEU. What is known to
differ from their run: docs/experiments.md. What came of it here, in bfloat16: RESULTS.md.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.dataset = "multi30k/en-de-tok"
    config.data.test_split = "test_2016_flickr"
    config.data.is_tokenized = True
    config.data.max_source_length = 64
    config.data.max_target_length = 64
    config.tokenizer.model_type = "subword-nmt"
    config.tokenizer.vocab_size = 10_000
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.dropout = 0.3
    config.optimizer.epsilon = 1e-8
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 5e-3
    config.optimizer.warmup_steps = 2000
    config.training.steps = 8000
    config.training.tokens_per_update = 8192
    config.training.log_every = 50
    config.training.checkpoint_every = 55  # about an epoch
    config.training.full_validation_every = 550
    config.training.keep_last = 10
    config.training.best_metric = "nll"
    config.training.patience = 10
    config.decoding.beam_size = 5
    config.decoding.length_penalty = 1.0
    return config
