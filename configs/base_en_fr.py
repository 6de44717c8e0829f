"""The paper's base model on WMT14 English-French.

    python train.py --config=configs/base_en_fr.py --workdir=runs/base_en_fr

The paper: 8 P100 GPUs, 12 hours; 38.1 BLEU on newstest2014. Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.dataset = "hf:wmt/wmt14:fr-en"
    config.data.target_language = "fr"
    config.tokenizer.vocab_size = 32_000
    return config
