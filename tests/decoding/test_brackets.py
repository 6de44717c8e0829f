"""Searches for trees alone, beside the best of all outputs that are trees."""

import jax.numpy as jnp
import numpy as np
import pytest
from random_tables import EOS, all_outputs, assert_best, random_tables, scores_of, search

from transformer.decoding.brackets import CLOSE, OPEN, OTHER, TAG, Brackets, grammar_of
from transformer.decoding.config import DecodingConfig
from transformer.system.errors import UserError
from transformer.tasks.mending import is_well_formed

PIECES = ["<pad>", "<s>", "</s>", "<unk>", "\u2581(S", "\u2581)S", "\u2581XX"]
B, ALPHA = 5, 0.6
WORDS, LENGTHS = np.array([1, 2, 1, 3, 2]), np.array([4, 6, 6, 6, 5])


def test_grammar():
    pieces = ["<pad>", "<s>", "</s>", "<unk>", "(S", ")S", "XX", "(X", ")NP", "(NP"]
    grammar = grammar_of(pieces)
    assert grammar.kind_V.tolist() == [0, 0, 0, 0, OPEN, CLOSE, TAG, OTHER, CLOSE, OPEN]
    assert grammar.label_V[4] == grammar.label_V[5] != grammar.label_V[8] == grammar.label_V[9]
    with pytest.raises(UserError, match=r"set tokenizer\.target_model_type to word"):
        grammar_of(["<pad>", "<s>", "</s>", "<unk>", "\u2581(", "S", "\u2581XX"])


def test_the_best_trees():
    """As many as there are, in the order of their scores, and nothing else."""
    tables = random_tables(B, seed=3)
    vocab_size = tables.shape[2]
    assert vocab_size == len(PIECES)
    rule = Brackets(grammar_of(PIECES), jnp.asarray(WORDS), jnp.asarray(LENGTHS))
    longest = int(LENGTHS.max())
    found = search(
        tables,
        jnp.asarray(LENGTHS),
        ALPHA,
        beam_size=128,
        longest=longest,
        nbest=128,
        parts=lambda _: {"rules": [rule]},
    )
    for b in range(B):
        scores = scores_of(all_outputs(tables[b], int(LENGTHS[b])), ALPHA, is_tree_of(WORDS[b]))
        assert assert_best(found, b, scores)


def is_tree_of(words):
    def is_tree(output):
        tokens = [PIECES[x].removeprefix("\u2581") for x in output if x != EOS]
        return 3 not in output and is_well_formed(tokens, words)

    return is_tree


def test_samples_are_refused():
    with pytest.raises(UserError, match=r"decoding\.brackets is for a search"):
        DecodingConfig(4, 0.6, 50, brackets=True, temperature=1.0)
