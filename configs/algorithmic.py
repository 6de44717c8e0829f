"""A small Transformer that copies up to 40 digits, tested on up to 400 (or reverses, or adds).

    python train.py --config=configs/algorithmic.py --workdir=runs/copy
    python evaluate.py --workdir=runs/copy --split=test,test_400

For the other tasks: --config.data.dataset=algorithmic/reverse, or algorithmic/addition.
docs/algorithmic.md says what the data are and how they are scored. The Universal Transformer paper,
whose tasks these are, gives no sizes and no training details for them; these are ours.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task.name = "transduction"
    config.data.dataset = "algorithmic/copy"
    config.data.source_language = "source"
    config.data.target_language = "target"
    config.data.max_source_length = 41
    config.data.max_target_length = 41
    config.tokenizer.model_type = "word"
    config.tokenizer.vocab_size = 15  # 4 special tokens, 10 digits, and + of addition
    config.model.num_encoder_layers = 2
    config.model.num_decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.dropout = 0.0
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.warmup_steps = 500
    config.training.steps = 4_000
    config.training.tokens_per_update = 2048
    config.training.label_smoothing = 0.0
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 1000
    config.training.best_metric = "nll"
    config.decoding.beam_size = 1  # greedy
    config.decoding.length_penalty = 0.0
    return config
