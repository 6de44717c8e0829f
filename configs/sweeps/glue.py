"""Does pre-training help? Four tasks of GLUE, from scratch and from a small BERT of your own.

    python sweep.py --config=configs/sweeps/glue.py
    python sweep.py --config=configs/sweeps/glue.py --table=md \
        --metric="last accuracy,last f1,last matthews"
    python benchmarks/bag_of_words.py

runs/bert_tiny_books_128 is a small BERT: docs/bert.md. All runs have its vocabulary. glue is a
folder with the files of each task: glue/RTE/train.tsv.gz, glue/RTE/dev.tsv and so on. Those of
SST-2 are whole sentences with a label after a tab, without a header. Batches have as many tokens in
all tasks, and each run has about 4 epochs.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import classification

PRETRAINED = "runs/bert_tiny_books_128"
# The columns of each task, the updates of an epoch, and the score that GLUE takes.
TASKS = {
    "SST-2": ({}, 205, "accuracy"),
    "MRPC": (
        {
            "data.has_header": True,
            "data.text_field": "#1 String",
            "data.second_field": "#2 String",
            "data.label_field": "Quality",
        },
        240,
        "f1",
    ),
    "RTE": (
        {
            "data.has_header": True,
            "data.text_field": "sentence1",
            "data.second_field": "sentence2",
            "data.label_field": "label",
        },
        190,
        "accuracy",
    ),
    "CoLA": ({"data.text_field": "4", "data.label_field": "2"}, 110, "matthews"),
}


def get_config() -> ConfigDict:
    config = classification.get_config()
    config.tokenizer.vocab_size = 8000
    return config


def get_sweep() -> dict[str, Any]:
    vocabulary = {"tokenizer.source_model": f"{PRETRAINED}/vocab.txt"}
    rows = []
    for task, (columns, epoch, metric) in TASKS.items():
        settings = {
            **columns,
            "data.train_file": f"glue/{task}/train.tsv.gz",
            "data.validation_file": f"glue/{task}/dev.tsv",
            "optimizer.warmup_steps": 4 * epoch // 10,
            "optimizer.decay_steps": 4 * epoch,
            "training.steps": 4 * epoch,
            "training.checkpoint_every": epoch,
            "training.best_metric": metric,
        }
        rows += [
            {"name": f"{task}_scratch", **settings, **vocabulary},
            {"name": f"{task}_pretrained", **settings, "training.init_from": PRETRAINED},
        ]
    return {"rows": rows, "seeds": [0, 1, 2, 3, 4], "evaluate": "none"}
