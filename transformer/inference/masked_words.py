"""The words that a masked language model, such as BERT, predicts for the places of a text."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import PAD
from transformer.data.wordpiece import MASK, WordPiece
from transformer.inference.attention_maps import padded
from transformer.models.functional import FunctionalModel
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

ROWS = 16  # texts with one place each, at once


def has_masked_lm(model: TrainedModel) -> bool:
    config = model.config.model
    return config.family == "bert" and config.head in ("masked_lm", "pre_training")


def check_masked_lm(model: TrainedModel) -> None:
    if not has_masked_lm(model):
        raise UserError(
            f"{model.workdir} has no masked language model, which predicts hidden words; give "
            "one, such as a run of configs/bert_tiny.py"
        )


def fill(model: TrainedModel, text: str, most: int) -> list[list[tuple[str, float]]]:
    """For each [MASK] of a text the `most` likeliest pieces, with their probabilities.

    model: see `check_masked_lm`. Raises UserError for a text without [MASK] or one too long.
    """
    if MASK not in text:
        raise UserError(f"there is no {MASK} in {text!r:.60}; write it in place of a word")
    ids = masked_ids(model.task.tokenizer, text)
    if (size := len(ids) + 2) > (limit := model.config.model.max_positions):
        raise UserError(f"the text has {size} tokens, and the model takes {limit}; shorten it")
    return fills(model, ids, most)


def masked_ids(tokenizer: WordPiece, text: str) -> list[int]:
    """The ids of a text, in which [MASK] stands for a hidden word."""
    first, *others = tokenizer.encode_batch(text.split(MASK))
    return first + [i for part in others for i in (tokenizer.mask, *part)]


def fills(model: TrainedModel, ids: Sequence[int], most: int) -> list[list[tuple[str, float]]]:
    """`fill` for the ids of a text, which are not checked."""
    tokenizer = model.task.tokenizer
    places = [place for place, token in enumerate(ids, 1) if token == tokenizer.mask]
    rows = [[tokenizer.cls, *ids, tokenizer.sep]] * len(places)
    return [
        [(tokenizer.pieces[i], math.exp(x_V[i])) for i in np.argsort(-x_V)[:most]]
        for x_V in predicted(model, rows, places)
    ]


def predicted(
    model: TrainedModel, rows: Sequence[Sequence[int]], places: Sequence[int]
) -> Iterator[np.ndarray]:
    """The log-probabilities [V] of the token at the place of each row."""
    run, size = _program(model.task.model), max(map(len, rows), default=0)
    for start in range(0, len(rows), ROWS):
        own, at = rows[start : start + ROWS], places[start : start + ROWS]
        missing = ROWS - len(own)
        tokens_BS = padded([*own, *[[PAD] * size] * missing])
        place_B1 = np.array([*at, *[0] * missing])[:, None]
        yield from np.asarray(run(model.params, model.extra, tokens_BS, place_B1))[: len(own)]


@functools.lru_cache(maxsize=2)
def _program(model: FunctionalModel) -> Any:
    """The compiled log-probabilities [B, V] of BERT for a place in each row."""

    @jax.jit
    def run(params, extra, tokens_BS, place_B1):
        bound = model.bind(params, extra)
        x_BSD, _ = bound.encode(tokens_BS, jnp.zeros_like(tokens_BS))
        x_B1D = jnp.take_along_axis(x_BSD, place_B1[..., None], axis=1)
        return jax.nn.log_softmax(bound.masked_lm_logits(x_B1D)[:, 0])

    return run
