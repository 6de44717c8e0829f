"""ConvS2S on the data of the demo.

python train.py --config=configs/demo_convs2s.py
python evaluate.py --workdir=runs/demo_convs2s
"""

from ml_collections import ConfigDict

from transformer.configs import convs2s_iwslt, demo


def get_config() -> ConfigDict:
    config = demo.get_config()
    with config.unlocked():
        config.model = convs2s_iwslt.get_model()
    config.model.embedding_size = 128
    config.model.encoder_blocks = "128x3x3"
    config.model.decoder_blocks = "128x3x3"
    config.model.output_size = 128
    config.model.max_positions = 64
    config.model.dropout = 0.1
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.max_grad_norm = 1.0
    return config
