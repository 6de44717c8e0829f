"""DialogSum: summaries of 12,460 dialogues, with an encoder-decoder (T-ED) on a CPU.

    pip install -c constraints.txt -e ".[summarization]"
    python train.py --config=configs/dialogsum.py --workdir=runs/dialogsum
    python evaluate.py --workdir=runs/dialogsum --split=validation

About an hour of one core in bfloat16 (with AMX). Our run failed: it learned to ignore its source,
and wrote one sentence for 278 of 500 dialogues. So its ROUGE-1 of 23.5 on dev says nothing about
the model (docs/summarization.md). The files are those of the data set's authors (Chen et al. 2021),
in this folder; --config.data.train_file=FILE names another place. The test file has three summaries
of each dialogue:

    python evaluate.py --workdir=runs/dialogsum --test_file=dialogsum.test.jsonl
"""

from ml_collections import ConfigDict

from transformer.configs import summarization


def get_config() -> ConfigDict:
    config = summarization.get_config()
    with config.unlocked():
        config.data.dataset = None
    config.data.train_file = "dialogsum.train.jsonl"
    config.data.validation_file = "dialogsum.dev.jsonl"
    config.data.document_field = "dialogue"
    config.data.summary_field = "summary"
    config.data.test_summary_fields = "summary1, summary2, summary3"
    config.data.max_target_length = 96
    config.tokenizer.vocab_size = 8000
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.optimizer.schedule = "linear"
    config.optimizer.peak_learning_rate = 2e-3
    config.optimizer.warmup_steps = 400
    config.optimizer.decay_steps = 5000
    config.training.tokens_per_update = 4096
    config.training.steps = 5000
    config.training.log_every = 50
    config.training.checkpoint_every = 500
    config.training.full_validation_every = 1000
    config.training.best_metric = "nll"
    config.training.patience = 4
    config.decoding.max_length = 96
    return config
