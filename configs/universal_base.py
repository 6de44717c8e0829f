"""The Universal Transformer, base size, on WMT14 English-German; every field of this family.

    python train.py --config=configs/universal_base.py --workdir=runs/universal_base

Dehghani et al. 2019: 28.9 BLEU, 8 P100 GPUs, six steps and no halting. Not yet trained here.
The sizes and dropout are those of Tensor2Tensor's universal_transformer_base.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.model = get_model()
    return config


def get_model() -> ConfigDict:
    model = base.get_config().model.copy_and_resolve_references()
    with model.unlocked():
        # Encoder and decoder have one layer each, positions no table, and logits no bias. With
        # another kind of positions the state gets no coordinates but those of the step.
        for name in (
            "num_encoder_layers",
            "num_decoder_layers",
            "max_positions",
            "output_bias",
            "starts_with_eos",
        ):
            del model[name]
        model.family = "universal"
        # How often a layer is applied; with halting, at most how often.
        model.encoder_steps = 6
        model.decoder_steps = 6
        # What follows attention: feed_forward, or separable_convolution of widths 3 and 5.
        model.transition = "feed_forward"
        # What is added to the state before a step, to tell which step it is: sinusoidal, the
        # paper's; learned, Tensor2Tensor's; none.
        model.step_signal = "sinusoidal"
        model.first_position = 1  # of a sentence; Tensor2Tensor's is 0
        # Where source positions are counted from. start, the paper's.
        # both_ends: half of the channels encode the number from the start, the others that from the
        # end, where the last word has the first position and EOS the one before it. So a target
        # that reverses its source finds each word at its own number.
        # separator: half of the channels encode the number from the start, the others that since
        # the last separator. In an addition, with + as separator, digits that are added to each
        # other then have the same number. In the target all channels count from the start.
        model.count_from = "start"
        model.separator = 0  # its id in the source vocabulary, if count_from is separator
        # In training, the positions of a row begin up to so much later, drawn at random: longer
        # sentences than those of training then have positions that training has seen. Small numbers
        # come more often: the logarithm is uniform.
        model.random_start = 0
        # In training, the positions of a row are 1, 2, ..., or this number apart, drawn in the same
        # way: so training has seen the distances of longer sentences, too. Not in the paper.
        model.random_stride = 1
        # Adaptive computation time. none; paper: the state of a position that has halted stays;
        # tensor2tensor: it is transformed further, which others see.
        model.halting = "none"
        # What becomes of the states of a position. interpolated: new * w + old * (1 - w), the
        # paper's; accumulated: old + new * w, the weighted sum of Graves (2016).
        model.halting_output = "interpolated"
        model.halting_threshold = 0.99  # a position halts when its probabilities exceed this
        model.ponder_weight = 0.01  # cost of a step of a token, in nats
    model.d_model = 1024
    model.d_ff = 4096
    model.num_heads = 16
    model.dropout = 0.3
    model.attention_dropout = 0.1
    model.activation_dropout = 0.1
    return model
