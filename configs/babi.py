"""A small Transformer that answers the questions of bAbI's twenty tasks, trained on all together.

    python train.py --config=configs/babi.py --config.data.raw_dir=babi --workdir=runs/babi
    python evaluate.py --workdir=runs/babi --split=test

raw_dir is a folder with the authors' archive: docs/algorithmic.md. The sizes are ours.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.task.name = "question_answering"
    config.data.dataset = "babi/en"
    config.data.source_language = "story"
    config.data.target_language = "answer"
    # Longer stories, six in a thousand, are left out of training; answers to them count in tests.
    config.data.max_source_length = 512
    config.data.max_target_length = 8
    config.tokenizer.model_type = "word"
    config.tokenizer.vocab_size = 256  # more than there are words
    config.model.num_encoder_layers = 2
    config.model.num_decoder_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.warmup_steps = 500
    config.training.steps = 10_000
    config.training.tokens_per_update = 4096
    config.training.label_smoothing = 0.0
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 1000
    config.training.best_metric = "mean_error"
    config.decoding.beam_size = 1  # greedy
    config.decoding.length_penalty = 0.0
    config.decoding.max_extra_length = 4
    return config
