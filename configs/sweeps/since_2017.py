"""What does each later idea buy? The model of 2017, with one change a row, on Multi30k.

    python sweep.py --config=configs/sweeps/since_2017.py --together=2 --results=results/since_2017
    python benchmarks/since_2017.py

The model is base of table3.py, with 1,200 updates, three seeds. Gated networks have 2/3 of d_ff, so
that parameters stay about as many. All runs should take four hours of two cores; none is recorded
yet. docs/since-2017.md explains the changes.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs.sweeps import table3

GATED = {"model.d_ff": 344}  # of 512; a multiple of 8

# Rows by the section of docs/since-2017.md that explains them: fields other than those of 2017.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "positions": {
        name: {"model.positions": name}
        for name in ("rotary", "relative", "relative_keys", "t5", "alibi", "none")
    },
    "attention": {
        "grouped_query": {"model.num_key_value_heads": 2},
        "multi_query": {"model.num_key_value_heads": 1},
        "qk_norm": {"model.qk_norm": True},
        "soft_cap": {"model.logit_soft_cap": 30.0},
    },
    "feed-forward": {
        name: {"model.feed_forward": name, **GATED} for name in ("glu", "geglu", "swiglu", "reglu")
    },
    "residual paths": {
        **{name: {"model.norm": name} for name in ("pre", "sandwich", "deepnorm", "rezero")},
        "rms_norm": {"model.normalization": "rms_norm"},
    },
    "biases and embeddings": {
        "no_biases": {"model.feed_forward_bias": False},
        "untied": {"model.share_embeddings": "none"},
    },
    "several": {
        # As in most language models of today.
        "modern": {
            "model.positions": "rotary",
            "model.feed_forward": "swiglu",
            **GATED,
            "model.feed_forward_bias": False,
            "model.norm": "pre",
            "model.normalization": "rms_norm",
            "model.qk_norm": True,
            "model.num_key_value_heads": 2,
        },
    },
}


def get_config() -> ConfigDict:
    config = table3.get_config()
    config.training.steps = 1200
    return config


def get_sweep() -> dict[str, Any]:
    changes = {"2017": {}} | {name: x for rows in CHANGES.values() for name, x in rows.items()}
    return {
        "rows": [{"name": name, **fields} for name, fields in changes.items()],
        "seeds": [0, 1, 2],
        "evaluate": "--split=validation,test --checkpoint=last",
    }
