"""A small Transformer that answers the questions of bAbI's twenty tasks, trained on all together.

    python train.py --config=configs/babi.py --config.data.raw_dir=babi --workdir=runs/babi
    python evaluate.py --workdir=runs/babi --split=test

raw_dir is a folder with the authors' archive: docs/algorithmic.md. The sizes are ours.
"""

from ml_collections import ConfigDict

from transformer.configs import algorithmic


def get_config() -> ConfigDict:
    config = algorithmic.get_config()
    config.task.name = "question_answering"
    config.data.dataset = "babi/en"
    # Each fact and the question is one position: the sum of its up to 12 words (Section 3.1 of the
    # Universal Transformer's paper). With "story" and 1 instead, each word is one.
    config.data.source_language = "facts"
    config.model.words_per_position = 12
    config.data.target_language = "answer"
    # In tokens, of which facts have 12. Longer stories are left out of training: 25 of the 18,020
    # of version 1.1, all of task qa3. Answers to long stories count in tests.
    config.data.max_source_length = 1536
    # Longer than any answer, so that a packed row has room for the answers to all its stories.
    config.data.max_target_length = 32
    config.tokenizer.vocab_size = 256  # more than there are words
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 64
    config.model.d_ff = 256
    config.model.norm = "pre"
    # In short trials, models without dropout of attention weights, or without weight decay, learned
    # stories by heart.
    config.model.dropout = 0.05
    config.model.attention_dropout = 0.2
    config.model.activation_dropout = 0.2
    config.optimizer.name = "adamw"
    config.optimizer.weight_decay = 0.1
    config.optimizer.schedule = "cosine"
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.decay_steps = 30_000
    config.training.steps = 30_000
    config.training.tokens_per_update = 6144  # 512 facts and questions
    config.training.max_tokens_per_device = 6144
    config.training.best_metric = "mean_error"
    config.decoding.max_extra_length = 4
    return config
