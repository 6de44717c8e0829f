"""Classes of texts by a small BERT, as of SST-2; every field of the task.

    python train.py --config=configs/classification.py --workdir=runs/sst2 \
        --config.training.init_from=runs/bert_tiny \
        --config.data.train_file=train.tsv --config.data.validation_file=dev.tsv
    python -m transformer classify --workdir=runs/sst2 < texts.txt

Turc et al. 2019: tiny 83.2 on SST-2's test set, after pre-training on 3.3 billion words. They
try batches of 8 to 128 examples, rates from 3e-4 to 3e-5, and 4 epochs: docs/bert.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.configs import bert_tiny


def get_config() -> ConfigDict:
    config = bert_tiny.get_config()
    with config.unlocked():
        config.data = get_data()
    config.task.name = "classification"
    config.model.head = "classification"
    # Not bert_adam: in short runs its steps are several times as long, and may learn nothing.
    config.optimizer.name = "adamw"
    config.optimizer.peak_learning_rate = 3e-4
    # The log says how many updates an epoch has. These are 4 epochs of 6,920 sentences.
    config.optimizer.warmup_steps = 65
    config.optimizer.decay_steps = 650
    config.training.steps = 650
    config.training.tokens_per_update = 1024  # about 42 sentences of SST-2
    config.training.checkpoint_every = 65
    config.training.log_every = 65
    # Or f1, matthews, nll; of a regression spearman, pearson, nll.
    config.training.best_metric = "accuracy"
    return config


def get_data() -> ConfigDict:
    data = ConfigDict()
    # A data set instead of files, of the Hugging Face hub (hf:nyu-mll/glue:sst2; docs/hub.md) or of
    # TFDS (glue/sst2); a copy of the former; its splits; where TFDS keeps the latter.
    data.dataset = placeholder(str)
    data.raw_dir = placeholder(str)
    data.data_dir = "~/tensorflow_datasets"
    data.train_split = "train"
    data.validation_split = "validation"
    data.test_split = "test"
    # Files of records instead (docs/tasks.md): .tsv, .jsonl or .parquet.
    data.train_file = placeholder(str)
    data.validation_file = placeholder(str)
    data.test_file = placeholder(str)
    data.has_header = False  # see configs/base.py
    # The fields of an example, in files and data sets: names, or numbers of columns, from 1 on.
    data.text_field = "1"
    data.second_field = placeholder(str)  # of pairs
    data.label_field = "2"
    data.regression = False  # labels are numbers, as in STS-B
    # In tokens, [CLS] and [SEP] included: longer texts are cut off.
    data.max_length = 128
    data.packing = True  # several texts share a row
    return data
