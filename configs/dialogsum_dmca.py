"""DialogSum with local and memory-compressed attention (T-DMCA), as configs/dialogsum_decoder.py.

    python train.py --config=configs/dialogsum_dmca.py --workdir=runs/dialogsum_dmca \
        --config.data.train_file=dialogsum.train.jsonl \
        --config.data.validation_file=dialogsum.dev.jsonl

About two hours of one core in bfloat16 (with AMX). Here: ROUGE-1 32.6 on dev
(docs/summarization.md).
"""

from ml_collections import ConfigDict

from transformer.configs import dialogsum_decoder


def get_config() -> ConfigDict:
    config = dialogsum_decoder.get_config()
    config.model.layers = "LMLML"
    config.model.block_length = 64  # a dialogue has two or three blocks of 256
    return config
