"""Copying, reversing and adding: does a model learn an algorithm? Four models, three tasks.

    python sweep.py --config=configs/sweeps/algorithmic.py
    python sweep.py --config=configs/sweeps/algorithmic.py --table=md

Reversing and adding take longer to learn, and the rate must fall to 0 then: with it the Universal
Transformer reverses longer sequences. docs/algorithmic.md says what the scores mean.
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


LONGER = {
    "training.steps": 6_000,
    "optimizer.schedule": "cosine",
    "optimizer.decay_steps": 6_000,
}
TASKS = {"copy": {}, "reverse": LONGER, "addition": LONGER}


def get_config() -> ConfigDict:
    return algorithmic.get_config()


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {"name": f"{task}_{name}", **model, "data.dataset": f"algorithmic/{task}", **training}
            for task, training in TASKS.items()
            for name, model in MODELS.items()
        ],
        "evaluate": "--split=validation,test,test_400",
    }
