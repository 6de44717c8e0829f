"""Five translation models of 2014 to 2017, German to English, by greedy search, on Multi30k.

    python sweep.py --config=configs/sweeps/german_english.py --results=results/german_english
    python sweep.py --config=configs/sweeps/german_english.py --table=md

The rows are those of the notebooks of bentrevett/pytorch-seq2seq. Trained here so far: lstm and gru
(docs/models.md).
"""

from typing import Any

from ml_collections import ConfigDict

from configs import multi30k_lstm

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
    "additive": {"config": "configs/multi30k_bahdanau.py"},
    "convolutions": {"config": "configs/multi30k_convs2s.py"},
    "transformer": {"config": "configs/multi30k_tiny.py"},
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
