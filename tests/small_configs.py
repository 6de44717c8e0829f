"""Configurations for tests: the paper's, but for what is named."""

import dataclasses

from configs import base
from transformer.experiment import Experiment

PAPER = Experiment.from_dict(base.get_config().to_dict())
# Sizes that are no multiples of anything, so that axes which are mixed up show.
MODEL = dataclasses.replace(
    PAPER.model,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=14,
    d_ff=11,
    num_heads=2,
    dropout=0.0,
    max_positions=31,
)
