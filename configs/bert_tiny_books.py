"""BERT, tiny, on a few million words of books and other English text.

    python train.py --config=configs/bert_tiny_books.py --workdir=runs/bert_tiny_books \
        --config.data.train_file='books/[A-Z]*.txt.gz,text/*.txt.gz' \
        --config.data.validation_file=books/validation-ABronte_Agnes.txt.gz

About 20 minutes on 2 CPU cores. Sequences have 32 tokens; docs/bert.md has a second run with 128.
What differs from bert_tiny.py is for a short run: this, a smaller vocabulary, smaller batches at a
higher rate, dynamic masks, and Adam with bias correction.
"""

from ml_collections import ConfigDict

from transformer.configs import bert_tiny


def get_config() -> ConfigDict:
    config = bert_tiny.get_config()
    # With 128, 5,000 updates teach it nothing about the words near a masked one.
    config.data.max_length = 32
    config.data.max_predictions = 5
    config.data.duplicates = 4
    config.data.masking = "dynamic"
    config.tokenizer.vocab_size = 8000
    config.optimizer.name = "adamw"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.decay_steps = 8000
    config.training.steps = 8000
    config.training.tokens_per_update = 32 * 128
    config.training.checkpoint_every = 1000
    return config
