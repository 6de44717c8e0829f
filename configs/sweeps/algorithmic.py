"""Copying, reversing and adding: does a model learn an algorithm? Four models, three tasks.

    python sweep.py --config=configs/sweeps/algorithmic.py
    python sweep.py --config=configs/sweeps/algorithmic.py --table=md

In reversing, the Universal Transformers count source positions from both ends.
docs/algorithmic.md says why, and what the scores mean.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import algorithmic

MODELS = {
    "lstm": {"config": "configs/algorithmic_lstm.py"},
    "transformer": {"config": "configs/algorithmic.py"},
    "universal": {"config": "configs/algorithmic_universal.py"},
    "universal_act": {"config": "configs/algorithmic_universal.py", "model.halting": "paper"},
}

BOTH_ENDS = {"model.count_from": "both_ends"}
TASKS = ("copy", "reverse", "addition")


def get_config() -> ConfigDict:
    return algorithmic.get_config()


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {"name": f"{task}_{name}", **model, "data.dataset": f"algorithmic/{task}"}
            | (BOTH_ENDS if task == "reverse" and name.startswith("universal") else {})
            for task in TASKS
            for name, model in MODELS.items()
        ],
        "evaluate": "--split=validation,test,test_400",
    }
