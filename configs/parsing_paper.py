"""The paper's parser (Section 6.3, Table 4): 4 layers of 1024 on the Wall Street Journal.

    python train.py --config=configs/parsing_paper.py --config.data.raw_dir=PTB --workdir=runs/wsj
    python evaluate.py --workdir=runs/wsj --split=test --checkpoint=average --average_last=5

PTB is the folder of the Penn Treebank with wsj/00/wsj_0001.mrg and so on, which is not free. The
paper: F1 91.3 on section 23. It gives d_model, layers, vocabulary, beam and length penalty, and
says that dropout, learning rates and beam were chosen on section 22. d_ff, heads, dropout, warm-up
and steps are ours, as d_ff and heads of the big model and the rest as in Tensor2Tensor. Not yet
trained here: docs/parsing.md.
"""

from ml_collections import ConfigDict

from transformer.configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    with config.unlocked():
        config.data = get_data()
    config.task.name = "parsing"
    config.tokenizer.vocab_size = 16_000  # of the words; the brackets are fewer
    config.tokenizer.joint = False
    config.tokenizer.target_model_type = "word"
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout = 0.2
    config.model.share_embeddings = "none"
    config.optimizer.warmup_steps = 16_000
    config.training.label_smoothing = 0.0
    config.training.checkpoint_every = 1000
    config.training.full_validation_every = 10_000
    config.training.best_metric = "f1"
    config.decoding.beam_size = 21
    config.decoding.length_penalty = 0.3
    config.decoding.max_extra_length = 300
    return config


def get_data() -> ConfigDict:
    data = ConfigDict()
    # A folder of trees in Penn brackets. Files below it, plain or .gz, by patterns with spaces
    # between them; a tree may be on one line or on several.
    data.raw_dir = "."
    data.train_trees = "wsj/0[2-9]/*.mrg wsj/1?/*.mrg wsj/2[01]/*.mrg"
    data.validation_trees = "wsj/22/*.mrg"
    data.test_trees = "wsj/23/*.mrg"
    # Leaves tagged -NONE-, and constituents without other words.
    data.remove_traces = True
    # What follows a label after - or =: NP-SBJ-1 becomes NP.
    data.remove_functions = True
    # The model writes XX for each word; or gold: it writes tags, which are not scored.
    data.tags = "XX"
    data.reverse_source = False  # the sentence is read from its end
    data.data_dir = "~/tensorflow_datasets"  # for the token cache
    data.max_source_length = 256
    data.max_target_length = 512
    data.packing = True
    return data
