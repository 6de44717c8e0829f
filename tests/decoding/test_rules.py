"""Searches with rules, beside the best of all outputs that obey them."""

import jax.numpy as jnp
import numpy as np
import pytest
from random_tables import (
    BOS,
    EOS,
    PAD,
    all_outputs,
    assert_best,
    forced_log_prob,
    next_state,
    outputs_of,
    penalty,
    random_tables,
    scores_of,
    search,
)

from transformer.decoding.rules import (
    Coverage,
    MinLength,
    NoRepeat,
    Prefix,
    RepetitionPenalty,
)

B, L, ALPHA = 7, 4, 0.6
TABLES = random_tables(B, seed=5)
MIN_LENGTHS = np.arange(B) % (L + 1)
# None, one, two or three tokens; of sentence 6 as many as there may be.
PREFIXES = [(), (3,), (4, 4), (6, 5), (), (3, 4), (5, 6, 3)]
PREFIX_BP = np.array([[*prefix, *[PAD] * (3 - len(prefix))] for prefix in PREFIXES])


def repeats(output, n):
    grams = [output[i : i + n] for i in range(len(output) - n + 1)]
    return len(set(grams)) < len(grams)


def forcing(arrays):
    prefix_BP, min_length_B = arrays
    return {"rules": [MinLength(min_length_B), Prefix(prefix_BP)]}


def forcing_without_repeats(arrays):
    return {"rules": [*forcing(arrays)["rules"], NoRepeat(2)]}


FREE = np.full_like(PREFIX_BP, PAD), np.zeros_like(MIN_LENGTHS)


@pytest.mark.parametrize(
    ("parts", "arrays", "obeys"),
    [
        (forcing, FREE, lambda b, output: True),
        (forcing, (FREE[0], MIN_LENGTHS), lambda b, output: len(output) >= MIN_LENGTHS[b]),
        (
            forcing,
            (PREFIX_BP, FREE[1]),
            lambda b, output: output[: len(PREFIXES[b])] == PREFIXES[b],
        ),
        (
            forcing_without_repeats,
            (PREFIX_BP, MIN_LENGTHS),
            lambda b, output: (
                len(output) >= MIN_LENGTHS[b]
                and output[: len(PREFIXES[b])] == PREFIXES[b]
                and not repeats(output, 2)
            ),
        ),
        (  # which contradict each other
            forcing_without_repeats,
            (np.full_like(PREFIX_BP, 3), FREE[1]),
            lambda b, output: False,
        ),
    ],
)
def test_the_best_that_obey(parts, arrays, obeys):
    asked = dict(beam_size=64, longest=L, nbest=64, parts=parts)
    found = search(TABLES, np.full(B, L), ALPHA, **asked, arrays=arrays)
    for b in range(B):
        scores = scores_of(all_outputs(TABLES[b], L), ALPHA, lambda output: obeys(b, output))  # noqa: B023
        assert_best(found, b, scores)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_narrow_beam_repeats_nothing_either(seed):
    longest = 13
    tables = random_tables(3, seed)[:, :7]  # few rows, so that outputs go in circles
    tables = np.tile(tables, (1, 143, 1))[:, : TABLES.shape[1]]
    tables[:, :, EOS] -= 3
    asked = dict(beam_size=3, longest=longest, nbest=3, parts=no_repeat)
    found = search(tables, np.full(3, longest), ALPHA, **asked)
    for b in range(3):
        outputs = list(filter(None, outputs_of(found, b)))
        # Of 4 tokens without a repetition, 5 with EOS are the most.
        assert outputs
        assert not any(repeats(output, 1) for output in outputs)
        for output, log_prob in zip(outputs, found.log_probs_BM[b]):
            assert log_prob == pytest.approx(forced_log_prob(tables[b], output), rel=1e-4)


def no_repeat(_):
    return {"rules": [NoRepeat(1), NoRepeat(99)]}  # the latter is longer than any output


def test_coverage():
    """Wu et al. 2016, Equation 14, over the true source tokens alone."""
    S, beta = 3, 0.7
    rng = np.random.default_rng(6)
    attention = rng.dirichlet(np.ones(S), TABLES.shape[:2]).astype(np.float32)
    real_BS = np.arange(S)[None] < np.array([3, 1, 2, 3, 2, 3, 3])[:, None]
    attention *= real_BS[:, None]
    found = search(
        TABLES,
        jnp.full(B, L),
        ALPHA,
        beam_size=64,
        longest=L,
        nbest=64,
        parts=covering,
        arrays=jnp.asarray(real_BS),
        attention_BXS=jnp.asarray(attention),
    )
    for b in range(B):
        scores = {}
        for output, log_prob in all_outputs(TABLES[b], L).items():
            state, covered_S = 0, np.zeros(S)
            for step, token in enumerate([BOS, *output[:-1]]):
                state = next_state(state, token, step)
                covered_S += attention[b, state]
            logs = np.log(np.minimum(covered_S[real_BS[b]], 1))
            scores[output] = log_prob / penalty(len(output), ALPHA) + beta * logs.sum()
        assert_best(found, b, scores, rtol=1e-4)


def covering(real_BS):
    return {"rules": [Coverage(0.7, real_BS)]}


def test_coverage_by_hand():
    rule = Coverage(0.2, jnp.array([[True, True, True, False]]))
    covered = jnp.array([[[0.5, 1.2, 0.9, 0.0]]])
    assert float(rule.bonus(covered)[0, 0]) == pytest.approx(-0.159702, abs=1e-6)


def penalised(logits, tokens, penalty):
    """As the code of Keskar et al. 2019, with logits below 0 multiplied: token by token."""
    logits = np.array(logits, np.float64)
    for token in set(tokens):
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    return logits


PENALTY = 1.7


def penalised_outputs(table_XV, max_length):
    """`all_outputs` after the penalty."""
    outputs, prefixes = {}, {(): 0.0}
    for length in range(1, max_length + 1):
        longer = {}
        for prefix, log_prob in prefixes.items():
            state = 0
            for step, token in enumerate([BOS, *prefix]):
                state = next_state(state, token, step)
            logits = penalised(table_XV[state], prefix, PENALTY)
            following = log_prob + logits - np.log(np.exp(logits).sum())
            outputs[*prefix, EOS] = following[EOS]
            if length < max_length:
                longer |= {(*prefix, token): following[token] for token in range(EOS + 1, 7)}
        prefixes = longer
    return outputs


def test_the_best_after_a_repetition_penalty():
    asked = dict(beam_size=64, longest=L, nbest=64, parts=penalising)
    found = search(TABLES, np.full(B, L), ALPHA, **asked)
    for b in range(B):
        assert_best(found, b, scores_of(penalised_outputs(TABLES[b], L), ALPHA), rtol=1e-4)


def penalising(_):
    return {"rules": [RepetitionPenalty(PENALTY)]}
