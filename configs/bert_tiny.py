"""BERT, tiny size (Turc et al. 2019): 4.4 million parameters.

    python train.py --config=configs/bert_tiny.py --workdir=runs/bert_tiny \
        --config.data.train_file='books/*.txt.gz' --config.data.validation_file=held_out.txt
"""

from ml_collections import ConfigDict

from transformer.configs import bert_base


def get_config() -> ConfigDict:
    config = bert_base.get_config()
    config.model.num_layers = 2
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 2
    return config
