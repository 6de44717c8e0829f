"""A small BERT, and text for it."""

import dataclasses
from pathlib import Path

import numpy as np

from configs import bert_tiny, classification
from transformer.data.documents import Documents
from transformer.data.wordpiece import SPECIAL, WordPiece
from transformer.models.family import build_model
from transformer.runs.restore import Chosen, TrainedModel
from transformer.runs.run_config import Config
from transformer.system.sharding import data_mesh
from transformer.tasks.masked_lm import MaskedLM, sizes_of

TINY = Config.from_dict(bert_tiny.get_config().to_dict())
CLASSIFICATION = Config.from_dict(classification.get_config().to_dict())
CONFIG = dataclasses.replace(
    TINY,
    model=dataclasses.replace(TINY.model, d_model=14, d_ff=11, num_heads=2, max_positions=13),
    data=dataclasses.replace(TINY.data, max_length=13, max_predictions=3),
)


def with_fields(config: Config, fields: dict) -> Config:
    """The config with other values of these fields; sections have no two of one name."""
    sections = {}
    for section in ("data", "tokenizer", "model", "optimizer", "training"):
        old = getattr(config, section)
        own = {name: value for name, value in fields.items() if name in vars(old)}
        sections[section] = dataclasses.replace(old, **own)
        fields = {name: value for name, value in fields.items() if name not in own}
    assert not fields
    return dataclasses.replace(config, **sections)


PIECES = (*SPECIAL, *"abcdefghijklmnopqrstuvwxyz,-[]", *(f"##{c}" for c in "abcdenrtw"))
WORDS = "one", "two", "three", "four", "##teen", "un", "##kno"


def write_vocabulary(folder) -> WordPiece:
    tokenizer = WordPiece([*PIECES, *WORDS], lowercase=True)
    tokenizer.save(folder)
    return tokenizer


def documents(*lengths) -> Documents:
    """Documents with lines of these lengths; token i is i."""
    lines = [n for document in lengths for n in document]
    starts = np.cumsum([0, *map(len, lengths)])
    return Documents(np.arange(sum(lines)), np.cumsum([0, *lines]), starts)


def many(seed=0, count=300) -> Documents:
    rng = np.random.default_rng(seed)
    return documents(*[rng.integers(1, 30, rng.integers(1, 20)).tolist() for _ in range(count)])


def trained_bert(random_params) -> TrainedModel:
    """A TrainedModel with random parameters."""
    tokenizer = WordPiece([*PIECES, *WORDS], lowercase=True)
    model = build_model(CONFIG.model, sizes_of(CONFIG, tokenizer))
    task = MaskedLM(CONFIG, tokenizer, model, data_mesh())
    chosen = Chosen("last", [3], 3, False)
    return TrainedModel(Path("run"), CONFIG, task, chosen, random_params(model), {})
