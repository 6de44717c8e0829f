"""Configurations for tests: the paper's, but for what is named; or those of commands."""

import dataclasses
import sys
from types import SimpleNamespace

from absl import flags
from ml_collections import config_flags

from configs import base
from transformer.models.family import Sizes
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.runs.run_config import Config

PAPER = Config.from_dict(base.get_config().to_dict())
# Sizes that are no multiples of anything, so that axes which are mixed up show.
SMALL = {"d_model": 14, "d_ff": 11, "num_heads": 2, "dropout": 0.0}
MODEL = dataclasses.replace(
    PAPER.model, num_encoder_layers=1, num_decoder_layers=1, max_positions=31, **SMALL
)

# What a search asks of its tokenizers if it gets token ids.
NO_LANGUAGES = SimpleNamespace(target=SimpleNamespace(beginning=()))

# Two layers of T-DMCA, the second of which has experts.
EXPERTS = SMALL | {"layers": "LM", "expert_layer": 2, "num_experts": 4, "expert_d_ff": 7}

# What came after 2017, in combinations that have each option once; of models with four heads.
SINCE_2017 = {
    "rotary": {"positions": "rotary", "num_key_value_heads": 2, "qk_norm": True}
    | {"norm": "sandwich", "feed_forward": "swiglu", "normalization": "rms_norm"},
    "relative": {"positions": "relative", "max_distance": 2, "num_key_value_heads": 1}
    | {"norm": "deepnorm", "feed_forward": "geglu", "logit_soft_cap": 0.5},
    "t5": {"positions": "t5", "norm": "rezero", "feed_forward": "glu", "feed_forward_bias": False}
    | {"logit_soft_cap": 2.0},
    "alibi": {"positions": "alibi", "num_key_value_heads": 2, "norm": "pre"}
    | {"feed_forward": "reglu", "attention_bias": True},
    "relative_keys": {"positions": "relative_keys", "max_distance": 1, "qk_norm": True},
    "none": {"positions": "none", "norm": "deepnorm"},
}


def model_config(kind, preset, **changes):
    """The model of a preset's module, a dataclass `kind`, with other values of some fields."""
    return kind(**preset.get_config().model.to_dict() | changes)


def sizes_of(source_vocab: int, target_vocab: int | None = None) -> Sizes:
    """Sizes of one vocabulary or of two, and of sentences that fill any table of positions."""
    target_vocab = target_vocab or source_vocab
    return Sizes(source_vocab, target_vocab, source_vocab == target_vocab, 997, 997)


def config_of(argv: list[str], monkeypatch) -> tuple[Config, list[str]]:
    """The config that the words of a command mean, and those that are no flags of it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", argv)  # where config_flags looks for overrides
    cli.register_parsers()
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, flag_values=values)
    others = values(argv, known_only=True)
    return Config.from_dict(values.config.to_dict()), others[1:]
