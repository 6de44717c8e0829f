"""Copying, reversing and adding: does a model learn an algorithm? Four models, three tasks.

    python sweep.py --config=configs/sweeps/algorithmic.py
    python sweep.py --config=configs/sweeps/algorithmic.py --table=md

To reverse and to add, the Universal Transformers have convolutions, and a rate that falls to 0.
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


def convolutions(steps: int) -> dict[str, Any]:
    return {
        "model.transition": "separable_convolution",
        "training.steps": steps,
        "optimizer.schedule": "cosine",
        "optimizer.decay_steps": steps,
    }


UNIVERSAL = {"copy": {}, "reverse": convolutions(3_000), "addition": convolutions(4_000)}


def get_config() -> ConfigDict:
    return algorithmic.get_config()


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {
                "name": f"{task}_{name}",
                **model,
                "data.dataset": f"algorithmic/{task}",
                **(own if name.startswith("universal") else {}),
            }
            for task, own in UNIVERSAL.items()
            for name, model in MODELS.items()
        ],
        "evaluate": "--split=validation,test,test_400",
    }
