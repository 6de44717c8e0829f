"""English-German image captions: 29,000 pairs, trained on a CPU.

    python train.py --config=configs/multi30k.py --workdir=runs/multi30k
    python evaluate.py --workdir=runs/multi30k --split=test --checkpoint=average

2 CPU cores: 37 minutes, BLEU 39.3 (sacreBLEU, 13a, cased) on test_2016_flickr; see RESULTS.md.
Downloads the data, or reads them from --config.data.raw_dir=FOLDER. The data may be used for
non-commercial research and education.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.dataset = "multi30k/en-de"
    config.data.test_split = "test_2016_flickr"
    config.data.max_source_length = 64
    config.data.max_target_length = 68
    config.tokenizer.vocab_size = 4000
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.optimizer.warmup_steps = 800
    config.training.steps = 7000
    config.training.tokens_per_update = 2048
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 1000
    return config
