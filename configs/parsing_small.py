"""A small parser for a CPU, on GENIA: 14,326 trees of biomedical abstracts.

    python train.py --config=configs/parsing_small.py --config.data.raw_dir=genia \\
        --workdir=runs/genia
    python evaluate.py --workdir=runs/genia --split=validation --brackets --checkpoint=average

genia is a folder with train.trees.gz and dev.trees.gz in McClosky's split, and test.trees if you
have it: docs/parsing.md. Sizes are ours. F1 on dev: 80.8.
"""

from ml_collections import ConfigDict

from transformer.configs import parsing_paper


def get_config() -> ConfigDict:
    config = parsing_paper.get_config()
    config.data.train_trees = "train.trees"
    config.data.validation_trees = "dev.trees"
    config.data.test_trees = "test.trees"
    # Tags tell the decoder which word it is at, which XX does not: with few trees it learns faster.
    config.data.tags = "gold"
    config.data.max_source_length = 128
    config.data.max_target_length = 192
    config.tokenizer.vocab_size = 4000
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.max_positions = 128
    config.optimizer.warmup_steps = 1000
    config.training.steps = 16_000
    config.training.tokens_per_update = 4096
    config.training.label_smoothing = 0.1
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 0
    config.training.best_metric = "nll"
    config.decoding.beam_size = 5
    return config
