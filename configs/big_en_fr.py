"""The paper's big model on WMT14 English-French.

    python train.py --config=configs/big_en_fr.py --workdir=runs/big_en_fr
    python evaluate.py --workdir=runs/big_en_fr --checkpoint=average --average_last=20

The paper: 8 P100 GPUs, 3.5 days; 41.8 BLEU on newstest2014 with the last 20 checkpoints
averaged (41.0 in the first version of the paper). Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import big


def get_config() -> ConfigDict:
    config = big.get_config()
    config.data.dataset = "hf:wmt/wmt14:fr-en"
    config.data.target_language = "fr"
    config.tokenizer.vocab_size = 32_000
    config.model.dropout = 0.1
    return config
