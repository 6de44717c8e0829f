"""BERT, tiny, on a few million words of books and other English text.

    python train.py --config=configs/bert_tiny_books.py --workdir=runs/bert_tiny_books \
        --config.data.train_text='books/[A-Z]*.txt.gz,text/*.txt.gz' \
        --config.data.validation_text=books/validation-ABronte_Agnes.txt.gz

About two hours on 2 CPU cores. What differs from bert_tiny.py is for a short run: a smaller
vocabulary, smaller batches at a higher rate, dynamic masks, and Adam with bias correction.
"""

from ml_collections import ConfigDict

from configs import bert_tiny


def get_config() -> ConfigDict:
    config = bert_tiny.get_config()
    config.data.duplicates = 4
    config.data.masking = "dynamic"
    config.tokenizer.vocab_size = 8000
    config.optimizer.name = "adamw"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.decay_steps = 20_000
    config.training.steps = 20_000
    config.training.tokens_per_update = 32 * 128
    config.training.checkpoint_every = 1000
    return config
