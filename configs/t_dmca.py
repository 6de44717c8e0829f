"""T-DMCA on scientific papers; every field of the decoder-only family.

    python train.py --config=configs/t_dmca.py --workdir=runs/t_dmca

Liu et al. 2018, "Generating Wikipedia by summarizing long sequences": five layers LMLML over up to
11,000 tokens, and one mixture of 128 experts or none. Their data, WikiSum, are not to be had; these
are the long documents of TensorFlow Datasets. Sizes are those of configs/base.py, since the paper
gives none. Not yet trained here.
"""

from ml_collections import ConfigDict

from transformer.configs import base, summarization


def get_config() -> ConfigDict:
    config = summarization.get_config()
    with config.unlocked():
        config.model = get_model()
    config.data.dataset = "scientific_papers/arxiv"
    config.data.summary_field = "abstract"
    config.data.max_source_length = 11_000
    config.data.max_target_length = 500
    config.data.packing = False  # a document fills a row
    config.training.tokens_per_update = 8 * 11_500
    config.decoding.max_length = 500
    return config


def get_model() -> ConfigDict:
    model = base.get_config().model.copy_and_resolve_references()
    with model.unlocked():
        # One stack instead of two, and no table of positions.
        for name in (
            "num_encoder_layers",
            "num_decoder_layers",
            "max_positions",
            "output_bias",
            "starts_with_eos",
            "words_per_position",
        ):
            del model[name]
        model.family = "decoder_only"
        # The attention of each layer: F, full; L, local; M, memory-compressed. FFFFF is T-D.
        model.layers = "LMLML"
        # What is minimised: the loss of all tokens of source, separator and target, or of the
        # target alone. nll is that of the target in either case.
        model.loss_over = "all"
        model.block_length = 256  # of local attention
        # What L sees: paper, its own block; tensor2tensor, also the whole block before.
        model.local_attention = "paper"
        model.compression = 3  # tokens that M makes one key and one value of
        # What the convolution of M reads: paper, keys and values; tensor2tensor, the vectors from
        # which they are projected.
        model.compressed_attention = "paper"
        # The layer, from 1, whose feed-forward network is a mixture of experts; 0: none.
        model.expert_layer = 0
        model.num_experts = 128
        model.experts_per_token = 2
        model.expert_d_ff = 2048  # hidden units of each
        # Weight of the term `balance` of the loss: 1 if experts are used evenly, more if not.
        model.balance_weight = 0.01
    model.share_embeddings = "all"  # input and output have one matrix; none: each has its own
    return model
