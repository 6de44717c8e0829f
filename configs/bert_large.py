"""BERT, large size (Devlin et al. 2019): 335 million parameters.

    python train.py --config=configs/bert_large.py --workdir=runs/bert_large \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt
"""

from ml_collections import ConfigDict

from transformer.configs import bert_base


def get_config() -> ConfigDict:
    config = bert_base.get_config()
    config.model.num_layers = 24
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    return config
