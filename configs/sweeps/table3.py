"""Table 3 of the paper in small: what does each choice buy? On Multi30k, three seeds a row.

    python sweep.py --config=configs/sweeps/table3.py --together=2 --results=results/table3
    python benchmarks/table3.py --results=results/table3

Rows have the paper's names. d_model, d_ff, d_k and d_v are a quarter of the paper's, layers half;
heads, dropout and label smoothing are the paper's own. 1,600 updates of 2,048 tokens stand for
100,000 of 25,000; the big model has three times as many, as there. Steps are set so that all runs
should take ten hours of two cores. What came of it: docs/tables.md.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import multi30k
from transformer.configs.sweeps import table3_paper

SMALLER = {
    "model.d_model": 4,
    "model.d_ff": 4,
    "model.d_k": 4,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "training.steps": 62.5,
}


def get_config() -> ConfigDict:
    config = multi30k.get_config()
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 8
    config.model.max_positions = 64
    config.optimizer.warmup_steps = 400
    config.training.steps = 1600
    config.training.checkpoint_every = 400
    config.training.full_validation_every = 0
    config.training.keep_last = 1
    config.training.best_metric = "nll"
    return config


def get_sweep() -> dict[str, Any]:
    rows = [
        {
            "name": name,
            **{field: small(field, value) for field, value in fields.items()},
        }
        for name, fields in table3_paper.ROWS.items()
    ]
    return {
        "rows": rows,
        "seeds": [0, 1, 2],
        "evaluate": "--split=validation,test --checkpoint=last",
    }


def small(field: str, value: Any) -> Any:
    return int(value / SMALLER[field]) if field in SMALLER else value
