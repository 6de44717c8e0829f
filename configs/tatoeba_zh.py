"""A small Transformer on Tatoeba's English-Chinese sentences: 18,000 pairs, on a CPU.

    python train.py --config=configs/tatoeba_zh.py --config.data.raw_dir=FOLDER \
        --workdir=runs/en-zh
    python evaluate.py --workdir=runs/en-zh --split=test
    echo "I like learning languages." | python translate.py --workdir=runs/en-zh

Chinese to English:

    python train.py --config=configs/tatoeba_zh.py --config.data.raw_dir=FOLDER \
        --config.data.source_language=zh --config.data.target_language=en --workdir=runs/zh-en

docs/chinese.md says what belongs into FOLDER. On test sentences: BLEU 22.8 (sacreBLEU, zh), and
27.6 from Chinese.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.dataset = "tatoeba_zh"
    config.data.target_language = "zh"
    config.data.max_source_length = 64
    config.data.max_target_length = 64
    # 3,230 of the pieces are Chinese characters: nearly all that the training text has.
    config.tokenizer.vocab_size = 6000
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.d_model = 192
    config.model.d_ff = 384
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 4e-3
    config.optimizer.warmup_steps = 300
    config.training.steps = 4000
    config.training.tokens_per_update = 1024
    config.training.log_every = 50
    config.training.checkpoint_every = 200
    config.training.full_validation_every = 1000
    return config
