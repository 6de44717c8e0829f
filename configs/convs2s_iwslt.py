"""ConvS2S in the size that fairseq trains on IWSLT14; every field of this family.

    python train.py --config=configs/convs2s_iwslt.py --workdir=runs/convs2s

fairseq's fconv_iwslt_de_en, German to English: about 32 BLEU. TFDS does not have IWSLT14: put its
files, {train,validation,test}.{de,en}, into the folder iwslt14. Not yet trained here. Theirs is
Nesterov momentum of 0.99 at 0.25, gradients clipped to a norm of 0.1, and the rate divided by ten
where validation no longer improves; here it is Adam.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.model = get_model()
    config.data.source_language = "de"
    config.data.target_language = "en"
    for split in ("train", "validation", "test"):
        config.data[f"{split}_source"] = f"iwslt14/{split}.de"
        config.data[f"{split}_target"] = f"iwslt14/{split}.en"
    config.tokenizer.vocab_size = 10_000
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.max_grad_norm = 0.1

    # The paper's Section 4.2: scores are divided by the length.
    config.decoding.beam_size = 5
    config.decoding.length_penalty = 1.0
    config.decoding.length_penalty_form = "power"
    return config


def get_model() -> ConfigDict:
    model = ConfigDict()
    model.family = "convolutional"
    model.embedding_size = 256  # of words, on both sides
    # Groups of blocks: channels x width of the convolution x how many.
    model.encoder_blocks = "256x3x4"
    model.decoder_blocks = "256x3x3"
    model.output_size = 256  # units before the softmax layer
    # Rows of the table of learned positions of either side; later positions share the last.
    model.max_positions = 1024
    model.weight_normalization = True  # of convolutions and linear layers
    model.share_attention = False  # one attention for all blocks of the decoder
    # Of embeddings, of the inputs of convolutions and of the softmax layer.
    model.dropout = 0.3
    model.dtype = "float32"  # of activations; or bfloat16
    return model
