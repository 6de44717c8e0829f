"""Table 3 of the paper in its true sizes: 20 models on WMT14 English-German.

    python sweep.py --config=configs/sweeps/table3_paper.py --config.model.dtype=bfloat16

Not yet trained here. `python benchmarks/table3.py` computes the parameters of each row.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import base

STEPS = 300_000  # of the big model; the others have the base's 100,000


def get_config() -> ConfigDict:
    return base.get_config()


def layers(number: int) -> dict[str, int]:
    return {"model.num_encoder_layers": number, "model.num_decoder_layers": number}


# The rows as the paper writes them: what is not named is as in the first. d_k and d_v follow from
# d_model and the heads.
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "A_1_head": {"model.num_heads": 1},
    "A_4_heads": {"model.num_heads": 4},
    "A_16_heads": {"model.num_heads": 16},
    "A_32_heads": {"model.num_heads": 32},
    "B_d_k_16": {"model.d_k": 16},
    "B_d_k_32": {"model.d_k": 32},
    "C_2_layers": layers(2),
    "C_4_layers": layers(4),
    "C_8_layers": layers(8),
    "C_d_model_256": {"model.d_model": 256},
    "C_d_model_1024": {"model.d_model": 1024},
    "C_d_ff_1024": {"model.d_ff": 1024},
    "C_d_ff_4096": {"model.d_ff": 4096},
    "D_dropout_0.0": {"model.dropout": 0.0},
    "D_dropout_0.2": {"model.dropout": 0.2},
    "D_smoothing_0.0": {"training.label_smoothing": 0.0},
    "D_smoothing_0.2": {"training.label_smoothing": 0.2},
    "E_learned_positions": {"model.positions": "learned"},
    "big": {
        "model.d_model": 1024,
        "model.d_ff": 4096,
        "model.num_heads": 16,
        "model.dropout": 0.3,
        "training.steps": STEPS,
    },
}


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [{"name": name, **fields} for name, fields in ROWS.items()],
        # As in the paper: newstest2013, one checkpoint.
        "evaluate": "--split=validation --checkpoint=last",
    }
