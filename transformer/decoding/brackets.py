"""The logits rule for trees: brackets match, and there is a tag for each word."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import EOS, UNK
from transformer.decoding.rules import LogitsRule
from transformer.system.errors import UserError

OTHER, OPEN, CLOSE, TAG = range(4)
DEEPEST = 64  # nested constituents; GENIA's trees have 30


class Grammar(NamedTuple):
    """The kind of each token of a vocabulary, and the labels of brackets as numbers."""

    kind_V: np.ndarray
    label_V: np.ndarray


def grammar_of(pieces: Sequence[str]) -> Grammar:
    """The grammar of a vocabulary of whole words such as `(NP`, `)NP` and `XX`."""
    names = [piece.removeprefix("\u2581") for piece in pieces]
    labels = sorted({name[1:] for name in names if name[:1] in ("(", ")")})
    kind_V, label_V = np.zeros(len(names), np.int32), np.zeros(len(names), np.int32)
    for i, name in enumerate(names):
        if i <= UNK:
            continue
        kind_V[i] = {"(": OPEN, ")": CLOSE}.get(name[:1], TAG)
        if kind_V[i] != TAG:
            label_V[i] = labels.index(name[1:])
    opened, closed = (set(label_V[kind_V == kind].tolist()) for kind in (OPEN, CLOSE))
    if not opened & closed or TAG not in kind_V:
        raise UserError(
            "decoding.brackets is True, and the target vocabulary has no brackets and tags as "
            "whole tokens; set tokenizer.target_model_type to word"
        )
    # A bracket that cannot be closed must not be opened.
    kind_V[(kind_V == OPEN) & ~np.isin(label_V, list(closed))] = OTHER
    return Grammar(kind_V, label_V)


@dataclasses.dataclass(frozen=True)
class Brackets(LogitsRule):
    """One tree over the words of the sentence, within its length.

    Each constituent has at least one word. A bracket is opened only if the length lets it close.
    """

    grammar: Grammar
    words_B: np.ndarray
    max_length_B: np.ndarray

    def start(self, batch_size, M):
        none_BM = jnp.zeros((batch_size, M), jnp.int32)
        return {
            "stack": jnp.zeros((batch_size, M, DEEPEST), jnp.int32),  # labels of open brackets
            "depth": none_BM,
            "words": none_BM,
            "is_empty": none_BM.astype(bool),  # the newest bracket has nothing in it yet
        }

    def mask(self, state, view):
        kind_11V, label_11V = (jnp.asarray(x)[None, None] for x in self.grammar)
        depth_BM = state["depth"]
        left_BM = self.words_B[:, None] - state["words"]
        has_more_BM = left_BM > 0
        is_first_BM = jnp.broadcast_to(view.step == 0, depth_BM.shape)
        # This token, a tag for each word, a closing bracket for it and each open one, and EOS.
        needs_BM = view.step + 1 + left_BM + (depth_BM + 1) + 1
        may_open_BM = has_more_BM & (is_first_BM | (depth_BM > 0)) & (depth_BM < DEEPEST)
        may_open_BM &= needs_BM <= self.max_length_B[:, None]
        may_close_BM = (depth_BM > 1) | ((depth_BM == 1) & ~has_more_BM)
        may_close_BM &= ~state["is_empty"]
        top_BM1 = jnp.take_along_axis(
            state["stack"], jnp.maximum(depth_BM - 1, 0)[:, :, None], axis=2
        )
        is_done_BM = (depth_BM == 0) & ~is_first_BM
        return (
            (may_open_BM[:, :, None] & (kind_11V == OPEN))
            | (may_close_BM[:, :, None] & (kind_11V == CLOSE) & (label_11V == top_BM1))
            | ((has_more_BM & (depth_BM > 0))[:, :, None] & (kind_11V == TAG))
            | (is_done_BM[:, :, None] & (jnp.arange(view.vocab_size) == EOS)[None, None])
        )

    def advance(self, state, token_BM):
        kind_BM = jnp.asarray(self.grammar.kind_V)[token_BM]
        label_BM1 = jnp.asarray(self.grammar.label_V)[token_BM][:, :, None]
        depth_BM, opens_BM = state["depth"], kind_BM == OPEN
        is_place_BMD = jnp.arange(DEEPEST)[None, None] == depth_BM[:, :, None]
        return {
            "stack": jnp.where(is_place_BMD & opens_BM[:, :, None], label_BM1, state["stack"]),
            "depth": depth_BM + opens_BM - (kind_BM == CLOSE),
            "words": state["words"] + (kind_BM == TAG),
            "is_empty": opens_BM,
        }
