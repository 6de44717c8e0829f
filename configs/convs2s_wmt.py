"""ConvS2S as published for WMT14 English-German: 15 blocks a side.

    python train.py --config=configs/convs2s_wmt.py --workdir=runs/convs2s_wmt

Gehring et al. 2017: 25.16 BLEU on newstest2014. Not yet trained here. The paper gives no rate of
dropout. Dropout 0.2 and label smoothing 0.1 are those of fairseq's recipe for fconv_wmt_en_de
(examples/translation/README.md). On the optimizer: convs2s_iwslt.py.
"""

from ml_collections import ConfigDict

from transformer.configs import base, convs2s_iwslt


def get_config() -> ConfigDict:
    config = convs2s_iwslt.get_config()
    config.data = base.get_config().data
    config.model.embedding_size = 768
    config.model.encoder_blocks = "512x3x9 1024x3x4 2048x1x2"
    config.model.decoder_blocks = "512x3x9 1024x3x4 2048x1x2"
    config.model.output_size = 512
    config.model.dropout = 0.2
    config.tokenizer.vocab_size = 40_000
    return config
