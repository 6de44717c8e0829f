"""BERT, small size (Turc et al. 2019): 29 million parameters.

    python train.py --config=configs/bert_small.py --workdir=runs/bert_small \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt
"""

from ml_collections import ConfigDict

from transformer.configs import bert_base


def get_config() -> ConfigDict:
    config = bert_base.get_config()
    config.model.num_layers = 4
    config.model.d_model = 512
    config.model.d_ff = 2048
    config.model.num_heads = 8
    return config
