"""Copying, reversing and adding: does a model learn an algorithm? Four models, three tasks.

    python sweep.py --config=configs/sweeps/algorithmic.py
    python sweep.py --config=configs/sweeps/algorithmic.py --table=md

In reversing, the Universal Transformers count source positions from both ends, and in adding, anew
after the +. docs/algorithmic.md says why, and what the scores mean.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import algorithmic

MODELS = {
    "lstm": {"config": "configs/algorithmic_lstm.py"},
    "transformer": {"config": "configs/algorithmic.py"},
    "universal": {"config": "configs/algorithmic_universal.py"},
    "universal_act": {"config": "configs/algorithmic_universal.py", "model.halting": "paper"},
}

# Of the Universal Transformers, by task.
COUNTS = {
    "copy": {},
    "reverse": {"model.count_from": "both_ends"},
    "addition": {"model.count_from": "separator", "model.separator": 14},  # the id of +
}


def get_config() -> ConfigDict:
    return algorithmic.get_config()


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {"name": f"{task}_{name}", **model, "data.dataset": f"algorithmic/{task}"}
            | (count if name.startswith("universal") else {})
            for task, count in COUNTS.items()
            for name, model in MODELS.items()
        ],
        "evaluate": "--split=validation,test,test_400",
    }
