"""ConvS2S on Multi30k, in the size of fairseq's fconv_iwslt_de_en.

python train.py --config=configs/multi30k_convs2s.py --workdir=runs/convs2s
python evaluate.py --workdir=runs/convs2s --split=test
"""

from ml_collections import ConfigDict

from transformer.configs import convs2s_iwslt, multi30k_tiny


def get_config() -> ConfigDict:
    config = multi30k_tiny.get_config()
    with config.unlocked():
        config.model = convs2s_iwslt.get_model()
    config.model.max_positions = 64
    config.optimizer.schedule = "cosine"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.warmup_steps = 500
    config.optimizer.decay_steps = 4000
    config.optimizer.max_grad_norm = 1.0
    config.training.steps = 4000
    config.training.tokens_per_update = 4096
    config.training.checkpoint_every = 100
    config.training.full_validation_every = 1000
    return config
