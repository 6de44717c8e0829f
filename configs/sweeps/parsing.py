"""Parsers of GENIA side by side: Transformer and RNN, words or pieces, tags or XX.

    python sweep.py --config=configs/sweeps/parsing.py --config.data.raw_dir=genia
    python sweep.py --config=configs/sweeps/parsing.py --config.data.raw_dir=genia --table=md

Each run is scored on the validation trees, and the search finds trees alone. For the search without
that rule: evaluate.py --workdir=runs/parsing/transformer-0 --split=validation --checkpoint=average
--nobrackets. What came of it: docs/parsing.md.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import parsing_small


def get_config() -> ConfigDict:
    return parsing_small.get_config()  # of most rows


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {"name": "transformer"},
            {"name": "words", "tokenizer.model_type": "word", "tokenizer.vocab_size": 16_000},
            {"name": "XX", "data.tags": "XX"},
            {"name": "rnn", "config": "configs/parsing_rnn.py"},
        ],
        "evaluate": "--split=validation --checkpoint=average --brackets",
    }
