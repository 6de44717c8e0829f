"""English to Chinese and back, on Tatoeba's sentences: the Transformer and an RNN with attention.

    python sweep.py --config=configs/sweeps/chinese.py --config.data.raw_dir=FOLDER
    python sweep.py --config=configs/sweeps/chinese.py --table=md

docs/chinese.md says what belongs into FOLDER.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer.configs import tatoeba_zh

BACK = {"data.source_language": "zh", "data.target_language": "en"}


def get_config() -> ConfigDict:
    return tatoeba_zh.get_config()


def get_sweep() -> dict[str, Any]:
    return {
        "rows": [
            {"name": f"{name}_{direction}", "config": file, **languages}
            for name, file in (
                ("transformer", "configs/tatoeba_zh.py"),
                ("rnn", "configs/tatoeba_zh_rnn.py"),
            )
            for direction, languages in (("en_zh", {}), ("zh_en", BACK))
        ],
        "evaluate": "--split=test",
    }
