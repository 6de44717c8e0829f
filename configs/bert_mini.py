"""BERT, mini size (Turc et al. 2019): 11 million parameters.

    python train.py --config=configs/bert_mini.py --workdir=runs/bert_mini \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt
"""

from ml_collections import ConfigDict

from transformer.configs import bert_base


def get_config() -> ConfigDict:
    config = bert_base.get_config()
    config.model.num_layers = 4
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    return config
