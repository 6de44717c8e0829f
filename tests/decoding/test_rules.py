"""Searches with rules, beside the best of all outputs that obey them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import (
    BOS,
    EOS,
    PAD,
    all_outputs,
    forced_log_prob,
    next_state,
    outputs_of,
    penalty,
    random_tables,
    search,
)

from transformer.decoding.rules import (
    Coverage,
    MinLength,
    NoRepeat,
    Prefix,
    RepetitionPenalty,
    StepView,
)
from transformer.decoding.strategies import Sample

B, L, ALPHA = 7, 4, 0.6
TABLES = random_tables(B, seed=5)
MIN_LENGTHS = np.arange(B) % (L + 1)
# None, one, two or three tokens; of sentence 6 as many as there may be.
PREFIXES = [(), (3,), (4, 4), (6, 5), (), (3, 4), (5, 6, 3)]
PREFIX_BP = np.array([[*prefix, *[PAD] * (3 - len(prefix))] for prefix in PREFIXES])


def repeats(output, n):
    grams = [output[i : i + n] for i in range(len(output) - n + 1)]
    return len(set(grams)) < len(grams)


RULES = {
    "min_length": (
        lambda _: {"rules": [MinLength(jnp.asarray(MIN_LENGTHS))]},
        lambda b, output: len(output) >= MIN_LENGTHS[b],
    ),
    "prefix": (
        lambda _: {"rules": [Prefix(jnp.asarray(PREFIX_BP))]},
        lambda b, output: output[: len(PREFIXES[b])] == PREFIXES[b],
    ),
    "no_repeat_1": (
        lambda _: {"rules": [NoRepeat(1)]},
        lambda b, output: not repeats(output, 1),
    ),
    "longer than any output": (lambda _: {"rules": [NoRepeat(9)]}, lambda b, output: True),
    "all": (
        lambda _: {
            "rules": [
                MinLength(jnp.asarray(MIN_LENGTHS)),
                Prefix(jnp.asarray(PREFIX_BP)),
                NoRepeat(2),
            ]
        },
        lambda b, output: (
            len(output) >= MIN_LENGTHS[b]
            and output[: len(PREFIXES[b])] == PREFIXES[b]
            and not repeats(output, 2)
        ),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_best_that_obey(name):
    parts, obeys = RULES[name]
    found = search(TABLES, jnp.full(B, L), ALPHA, beam_size=64, longest=L, nbest=64, parts=parts)
    for b in range(B):
        scores = {
            output: log_prob / penalty(len(output), ALPHA)
            for output, log_prob in all_outputs(TABLES[b], L).items()
            if obeys(b, output)
        }
        best = sorted(scores, key=scores.get, reverse=True)[:64]
        assert best
        assert list(filter(None, outputs_of(found, b))) == best
        np.testing.assert_allclose(
            found.scores_BM[b, : len(best)], [scores[x] for x in best], rtol=1e-5
        )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from([1, 2]))
def test_a_narrow_beam_repeats_nothing_either(seed, n):
    longest = 13
    tables = random_tables(3, seed)[:, :7]  # few rows, so that outputs go in circles
    tables = np.tile(tables, (1, 143, 1))[:, : TABLES.shape[1]]
    tables[:, :, EOS] -= 3
    parts = NO_REPEAT[n]
    found = search(
        tables, jnp.full(3, longest), ALPHA, beam_size=3, longest=longest, nbest=3, parts=parts
    )
    for b in range(3):
        outputs = list(filter(None, outputs_of(found, b)))
        # Of 4 tokens without a repetition, 5 with EOS are the most.
        assert outputs
        assert not any(repeats(output, n) for output in outputs)
        for output, log_prob in zip(outputs, found.log_probs_BM[b]):
            assert log_prob == pytest.approx(forced_log_prob(tables[b], output), rel=1e-4)


NO_REPEAT = {n: lambda _, n=n: {"rules": [NoRepeat(n)]} for n in (1, 2)}


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
        best = sorted(scores, key=scores.get, reverse=True)[:64]
        assert outputs_of(found, b)[:20] == best[:20]
        np.testing.assert_allclose(found.scores_BM[b], [scores[x] for x in best], rtol=1e-4)


def covering(real_BS):
    return {"rules": [Coverage(0.7, real_BS)]}


def test_coverage_by_hand():
    rule = Coverage(0.2, jnp.array([[True, True, True, False]]))
    covered = jnp.array([[[0.5, 1.2, 0.9, 0.0]]])
    assert float(rule.bonus(covered)[0, 0]) == pytest.approx(-0.159702, abs=1e-6)


def test_contradicting_rules_leave_nothing():
    parts = RULES["all"][0]
    found = search(TABLES, jnp.full(B, L), ALPHA, beam_size=4, longest=L, parts=parts)
    assert np.isfinite(found.scores_BM[:, 0]).all()
    found = search(TABLES, jnp.full(B, L), ALPHA, beam_size=4, longest=L, parts=impossible)
    assert np.isneginf(found.scores_BM).all()
    assert (np.asarray(found.tokens_BML) == PAD).all()


def impossible(_):
    prefix_BP = jnp.tile(jnp.array([[3, 3, PAD]]), (B, 1))
    return {"rules": [Prefix(prefix_BP), NoRepeat(1)]}


def penalised(logits, tokens, penalty):
    """As the code of Keskar et al. 2019, with logits below 0 multiplied: token by token."""
    logits = np.array(logits, np.float64)
    for token in set(tokens):
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    return logits


def test_a_repetition_penalty_by_hand():
    """Two hypotheses: BOS 3 5 3 and BOS 4 4 EOS; PAD follows."""
    tokens_BML = jnp.array([[[BOS, 3, 5, 3, PAD], [BOS, 4, 4, PAD, PAD]]])
    logits_NV = jnp.array([[9.0, 8, -1, 6, 5, -4, 0], [9.0, -8, 3, 6, -5, -4, 0]])
    view = StepView(jnp.int32(3), tokens_BML, None, 7)
    found = RepetitionPenalty(2.0).rescore(logits_NV, view)
    expected = [[9, 8, -1, 3, 5, -8, 0], [9, -8, 3, 6, -10, -4, 0]]
    np.testing.assert_array_equal(found, expected)
    for row, tokens in enumerate(([3, 5, 3], [4, 4])):
        np.testing.assert_array_equal(penalised(logits_NV[row], tokens, 2.0), expected[row])


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
    parts = PENALISED[PENALTY]
    found = search(TABLES, jnp.full(B, L), ALPHA, beam_size=64, longest=L, nbest=64, parts=parts)
    for b in range(B):
        scores = {
            output: log_prob / penalty(len(output), ALPHA)
            for output, log_prob in penalised_outputs(TABLES[b], L).items()
        }
        best = sorted(scores, key=scores.get, reverse=True)[:64]
        assert list(filter(None, outputs_of(found, b))) == best
        np.testing.assert_allclose(found.scores_BM[b], [scores[x] for x in best], rtol=1e-4)


def test_samples_after_a_repetition_penalty():
    """A large one makes samples that repeat nothing where something else is left."""
    keys_B = jax.vmap(jax.random.key)(jnp.arange(3, dtype=jnp.uint32))
    logits = jnp.asarray(random_tables(3)).at[:, :, EOS].set(-30.0) - 9
    asked = {"beam_size": 5, "longest": 4, "nbest": 5, "arrays": keys_B}
    free, found = (
        search(logits, jnp.full(3, 4), 0.0, parts=PENALISED[x], **asked) for x in ("free", "large")
    )
    assert any(repeats(x[:-1], 1) for b in range(3) for x in outputs_of(free, b))
    assert not any(repeats(x[:-1], 1) for b in range(3) for x in outputs_of(found, b))


# By name or number, so that each is compiled once.
PENALISED = {
    PENALTY: lambda _: {"rules": [RepetitionPenalty(PENALTY)]},
    "free": lambda keys_B: {"strategy": Sample(1.0, 0, 1.0, keys_B)},
    "large": lambda keys_B: {
        "strategy": Sample(1.0, 0, 1.0, keys_B),
        "rules": [RepetitionPenalty(1000.0)],
    },
}
