"""Five translation models of 2014 to 2017, German to English, by greedy search, on Multi30k.

    python sweep.py --config=configs/sweeps/german_english.py --results=results/german_english
    python sweep.py --config=configs/sweeps/german_english.py --table=md

The rows are those of the notebooks of bentrevett/pytorch-seq2seq. What came of it: docs/models.md.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import multi30k_lstm

GRU = {  # Cho et al. (2014): one layer; each step sees the encoder's last state
    "model.cell": "gru",
    "model.num_layers": 1,
    "model.encoder": "forward",
    "model.attention": "fixed",
    "model.layer_dropout": 0.0,  # it acts between layers
}
MODELS = {
    "lstm": {"config": "configs/multi30k_lstm.py"},
    "gru": {"config": "configs/multi30k_lstm.py", **GRU},
    # The next three stop sooner than their configs, so that a core without bfloat16 trains each
    # in an hour or two.
    "additive": {
        "config": "configs/multi30k_bahdanau.py",
        "training.steps": 4000,
        "optimizer.decay_steps": 4000,
    },
    "convolutions": {
        "config": "configs/multi30k_convs2s.py",
        "optimizer.warmup_steps": 300,
        "optimizer.decay_steps": 1800,
        "training.steps": 1800,
        "training.tokens_per_update": 2048,
        "training.full_validation_every": 600,
    },
    "transformer": {
        "config": "configs/multi30k_tiny.py",
        "model.dropout": 0.2,  # fewer epochs need less of it
        "optimizer.schedule": "cosine",
        "optimizer.peak_learning_rate": 2e-3,
        "optimizer.warmup_steps": 500,
        "optimizer.decay_steps": 4800,
        "training.steps": 4800,
        "training.tokens_per_update": 2048,
        "training.checkpoint_every": 200,
        "training.full_validation_every": 1600,
    },
}


def get_config() -> ConfigDict:
    return multi30k_lstm.get_config()


def get_sweep() -> dict[str, Any]:
    own = {
        "data.dataset": "multi30k/de-en-tok",
        "data.source_language": "de",
        "data.target_language": "en",
        "decoding.beam_size": 1,
    }
    return {
        "rows": [{"name": name, **model, **own} for name, model in MODELS.items()],
        "evaluate": "--split=test",
    }
