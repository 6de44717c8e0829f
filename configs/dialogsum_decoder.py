"""DialogSum with a decoder-only Transformer (T-D); see configs/dialogsum.py for the commands.

    python train.py --config=configs/dialogsum_decoder.py --workdir=runs/dialogsum_decoder \
        --config.data.train_file=dialogsum.train.jsonl \
        --config.data.validation_file=dialogsum.dev.jsonl

About 90 minutes of two cores in bfloat16 (with AMX). Here: ROUGE-1 35.1 on dev
(docs/summarization.md).
"""

from ml_collections import ConfigDict

from transformer.configs import dialogsum, t_dmca


def get_config() -> ConfigDict:
    config = dialogsum.get_config()
    with config.unlocked():
        config.model = t_dmca.get_model()
    config.model.layers = "FFFFF"
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    return config
