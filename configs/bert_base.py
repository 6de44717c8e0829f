"""BERT, base size, pre-trained on your own text; every field of this family and of its task.

    python train.py --config=configs/bert_base.py --workdir=runs/bert_base \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt

Devlin et al. 2019: 16 TPU chips, 4 days, 3.3 billion words. Not yet trained here. The paper's last
tenth of the updates has sequences of 512 tokens: docs/bert.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.task.name = "masked_lm"
        config.data = get_data()
        config.tokenizer = get_tokenizer()
        config.model = get_model()
        del config.decoding

    # Adam with decoupled weight decay and without bias correction; or lamb, for large batches.
    config.optimizer.name = "bert_adam"
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-6
    config.optimizer.weight_decay = 0.01
    config.optimizer.max_grad_norm = 1.0
    config.optimizer.schedule = "linear"
    config.optimizer.peak_learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.decay_steps = 1_000_000
    config.training.steps = 1_000_000
    config.training.tokens_per_update = 256 * 128
    config.training.label_smoothing = 0.0
    config.training.checkpoint_every = 5000
    config.training.full_validation_every = 0
    # Or nll, of masked tokens; or next_sentence_accuracy.
    config.training.best_metric = "masked_accuracy"
    return config


def get_data() -> ConfigDict:
    data = ConfigDict()
    # Text files: one sentence a line, an empty line between documents; or .jsonl, .parquet or
    # .tsv, a document a record (docs/tasks.md). Several with commas between them, or patterns such
    # as books/*.gz.
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
    # Of a sequence, in tokens, [CLS] and both [SEP] included; and of a row of a batch.
    data.max_length = 128
    data.short_rate = 0.1  # the share of sequences that are shorter, by a random length
    # How many times each document is cut into sequences, each time another way.
    data.duplicates = 10
    data.mask_rate = 0.15  # the share of tokens that are predicted
    data.max_predictions = 20  # in a row
    # static: a sequence is always masked in the same way, as published; dynamic: each time in
    # another, as in RoBERTa.
    data.masking = "static"
    data.whole_words = False  # all pieces of a word are masked, or none
    # Short sequences share a row. False: one sequence a row, as published.
    data.packing = True
    return data


def get_tokenizer() -> ConfigDict:
    tokenizer = ConfigDict()
    tokenizer.vocab_size = 30_522  # of the uncased models; special tokens included
    tokenizer.lowercase = True  # and accents are removed
    # A vocab.txt or tokenizer.json to use instead of a new vocabulary.
    tokenizer.source_model = placeholder(str)
    return tokenizer


def get_model() -> ConfigDict:
    model = base.get_config().model.copy_and_resolve_references()
    with model.unlocked():
        # There is no decoder, and embeddings are neither shared by two sides nor scaled.
        for name in (
            "num_encoder_layers",
            "num_decoder_layers",
            "share_embeddings",
            "scale_embeddings",
            "scale_outputs",
            "starts_with_eos",
            "output_bias",
            "words_per_position",
        ):
            del model[name]
        model.family = "bert"
        model.num_layers = 12  # of the encoder
        model.num_token_types = 2  # embeddings that tell sentence A from sentence B
        # What follows the encoder. pre_training: masked tokens, and whether sentence B follows A;
        # masked_lm: masked tokens alone, as in RoBERTa; classification; none.
        model.head = "pre_training"
    model.d_model = 768
    model.d_ff = 3072
    model.num_heads = 12
    model.positions = "learned"  # or others of configs/base.py, but sinusoidal
    model.max_positions = 512
    model.attention_bias = True
    model.attention_dropout = 0.1
    model.activation = "gelu"  # the tanh form, as published; models of the hub have gelu_exact
    model.norm_epsilon = 1e-12
    return model
