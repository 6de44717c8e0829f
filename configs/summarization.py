"""Documents to summaries; every field of the task `summarization`, explained.

    pip install -c constraints.txt -e ".[summarization]"
    python train.py --config=configs/summarization.py --workdir=runs/summarization

An encoder-decoder (T-ED of Liu et al. 2018) of the size of configs/base.py on CNN/Daily Mail. Not
yet trained here. docs/summarization.md has the data and the scores.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.task.name = "summarization"
        config.data = get_data()
    config.tokenizer.vocab_size = 32_000
    config.training.best_metric = "rougeL"
    config.decoding.no_repeat_ngram = 3
    config.decoding.max_length = 200
    return config


def get_data() -> ConfigDict:
    data = ConfigDict()
    # A TFDS builder: cnn_dailymail, gigaword, xsum, scientific_papers/arxiv, ...; or a data set of
    # the Hugging Face hub, such as hf:abisee/cnn_dailymail:3.0.0.
    data.dataset = "cnn_dailymail"
    data.data_dir = "~/tensorflow_datasets"
    # xsum of TFDS: the folder with xsum-extracts-from-downloads.tar.gz, which you make with its
    # authors' script. Of a data set of the hub: a copy, read instead of the download.
    data.raw_dir = placeholder(str)
    data.train_split = "train"
    data.validation_split = "validation"
    data.test_split = "test"
    # Files of records instead of `dataset` (docs/tasks.md): .jsonl, .parquet or .tsv.
    data.train_file = placeholder(str)
    data.validation_file = placeholder(str)
    data.test_file = placeholder(str)
    data.has_header = False  # see configs/base.py
    # The names of both texts, in files of records and in data sets.
    data.document_field = "article"
    data.summary_field = "highlights"
    # Of the test split, if it has others or several, with commas between them.
    data.test_summary_fields = placeholder(str)
    # Or text files for each split, a document and a summary a line.
    data.train_source = placeholder(str)
    data.train_target = placeholder(str)
    data.validation_source = placeholder(str)
    data.validation_target = placeholder(str)
    data.test_source = placeholder(str)
    data.test_target = placeholder(str)
    # What takes the place of a line break, since a text is one line here. One that is not blank is
    # learned, and rougeLsum splits sentences there.
    data.line_break = " "
    # What becomes of documents of more than max_source_length tokens: cut, or refuse. Both count
    # them.
    data.long_documents = "cut"
    data.max_source_length = 512  # in tokens, EOS included
    data.max_target_length = 160  # longer summaries are dropped from training, and counted
    data.packing = True  # see configs/base.py
    return data
