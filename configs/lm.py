"""A decoder-only language model on plain text.

    python train.py --config=configs/lm.py --workdir=runs/lm \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt
    python -m transformer complete --workdir=runs/lm --prompt="It was a" --temperature=0.8

Sized for 90 minutes of two cores. Not yet trained here. docs/language-models.md explains it.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.configs import base, t_dmca


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.task.name = "language_model"
        config.data = get_data()
        config.model = t_dmca.get_model()
    config.tokenizer.vocab_size = 8000
    config.model.layers = "FFFF"
    config.model.loss_over = "target"  # which is all of the text
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.optimizer.schedule = "cosine"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.warmup_steps = 300
    config.optimizer.decay_steps = 6000
    config.optimizer.max_grad_norm = 1.0
    config.training.steps = 6000
    config.training.tokens_per_update = 2048
    config.training.label_smoothing = 0.0
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 0
    config.training.best_metric = "nll"
    config.decoding.beam_size = 1
    config.decoding.max_extra_length = 100  # tokens of a prompt and what is written after it
    config.decoding.temperature = 1.0  # sample
    return config


def get_data() -> ConfigDict:
    data = ConfigDict()
    # Text files: lines of text, an empty line between documents; or .jsonl, .parquet or .tsv, a
    # document a record (docs/tasks.md). Several with commas between them, or patterns such as
    # books/*.gz.
    data.train_file = placeholder(str)
    data.validation_file = placeholder(str)
    data.test_file = placeholder(str)
    data.text_field = "text"  # the field of a record that is the document
    data.has_header = False  # see configs/base.py
    # Or a data set of the Hugging Face hub: see configs/base.py, also for the next four.
    data.dataset = placeholder(str)
    data.raw_dir = placeholder(str)
    data.train_split = "train"
    data.validation_split = "validation"
    data.test_split = "test"
    # Of a window, in tokens. Documents are cut into windows, which do not overlap.
    data.max_length = 256
    # The ends of documents share a row. False: one window a row.
    data.packing = True
    return data
