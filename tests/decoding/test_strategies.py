"""Diverse groups, samples and constraints."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_tables import (
    EOS,
    PAD,
    V,
    all_outputs,
    forced_log_prob,
    log_probs_after,
    outputs_of,
    penalty,
    random_tables,
    scores_of,
    search,
)

from transformer.decoding.strategies import Constrained, DiverseBeam, Sample, phrase_tables

ALPHA = 0.6


# --- Diverse groups ---


DIVERSE = {n: lambda strength, n=n: {"strategy": DiverseBeam(n, strength)} for n in (3, 6)}


def grouped_search(table_XV, max_length, groups, size, strength):
    """Scores of all distinct outputs of groups that go on in turn to the maximum length."""
    live, finished = [[(0.0, ())] for _ in range(groups)], {}
    for length in range(1, max_length + 1):
        taken = collections.Counter()
        for group in range(groups):
            candidates = []
            for log_prob, prefix in live[group]:
                following = log_probs_after(table_XV, prefix)
                for token in [EOS] if length == max_length else range(EOS, V):
                    total = log_prob + following[token]
                    candidates.append((total - strength * taken[token], total, (*prefix, token)))
            candidates.sort(reverse=True)
            candidates = candidates[: 2 * size if size > 1 else 1]
            for _, total, output in candidates:
                if output[-1] == EOS:
                    finished[output] = total / penalty(length, ALPHA)
            live[group] = [x[1:] for x in candidates if x[2][-1] != EOS][:size]
            taken.update(output[-1] for _, output in live[group])
    return finished


@pytest.mark.parametrize(("groups", "strength"), [(3, 0.0), (3, 0.5), (6, 1.5)])
def test_groups_are_those_of_a_plain_loop(groups, strength):
    B, M, longest = 7, 6, 5
    tables = random_tables(B, seed=7)
    # As many as there may be are asked for, so that no search ends early.
    asked = dict(beam_size=M, longest=longest, nbest=M, parts=DIVERSE[groups])
    found = search(tables, np.full(B, longest), ALPHA, **asked, arrays=np.float32(strength))
    for b in range(B):
        scores = grouped_search(tables[b], longest, groups, M // groups, strength)
        best = sorted(scores, key=scores.get, reverse=True)[:M]
        outputs = list(filter(None, outputs_of(found, b)))
        assert outputs == best
        log_probs = [forced_log_prob(tables[b], output) for output in outputs]
        np.testing.assert_allclose(found.log_probs_BM[b, : len(best)], log_probs, rtol=1e-5)


# --- Samples ---


def sampling(arrays):
    temperature, seed_B = arrays
    return {"strategy": Sample(temperature, 0, 1.0, jax.vmap(jax.random.key)(seed_B))}


SAMPLES = 4000


@pytest.mark.parametrize(
    ("temperature", "shape"), [(1.0, lambda p: p), (0.5, lambda p: p**2 / (p**2).sum())]
)
def test_samples_have_the_probabilities_asked_for(temperature, shape):
    tables = random_tables(1, seed=8)
    found = search(
        tables,
        jnp.array([2]),
        0.0,
        beam_size=SAMPLES,
        longest=2,
        nbest=SAMPLES,
        parts=sampling,
        arrays=(np.float32(temperature), jnp.array([3], jnp.uint32)),
    )
    # PAD and BOS take no part. EOS ends; the second token is EOS by force.
    probabilities = np.exp(log_probs_after(tables[0], ()))
    probabilities[:EOS] = 0
    probabilities = shape(probabilities / probabilities.sum())
    first = np.asarray(found.tokens_BML[0, :, 0])
    shares = np.bincount(first, minlength=V) / SAMPLES
    deviation = np.sqrt(probabilities * (1 - probabilities) / SAMPLES)
    assert (np.abs(shares - probabilities) <= 4.5 * deviation).all()
    # Scores are the model's own.
    for m in (0, 1, SAMPLES // 2, SAMPLES - 1):
        output = outputs_of(found, 0)[m]
        log_prob = forced_log_prob(tables[0], output)
        assert found.log_probs_BM[0, m] == pytest.approx(log_prob, rel=1e-5)


def test_temperature_then_top_k_then_top_p():
    """By hand: the fewest tokens, of the most probable, whose probabilities sum up to top_p."""
    cases = {  # temperature, top_k, top_p: the tokens that are left, the likeliest first
        (1.0, 0, 0.8): [0, 1],
        (1.0, 0, 0.81): [0, 1, 2],
        (1.0, 0, 0.01): [0],
        (1.0, 0, 0.99): [0, 1, 2, 3],
        (1.0, 3, 1.0): [0, 1, 2],
        # 2 x log p: .25, .09, .0225 of .3650: without the last two .735 and .265.
        (0.5, 2, 0.73): [0],
        (0.5, 2, 0.74): [0, 1],
    }
    log_probs = jnp.log(jnp.array([[[0.5, 0.3, 0.15, 0.05]]]))
    keys = jnp.zeros(1)
    found = jax.jit(lambda x: [Sample(*asked, keys).restricted(x) for asked in cases])(log_probs)
    for logits, expected in zip(found, cases.values(), strict=True):
        assert np.flatnonzero(np.isfinite(logits[0, 0])).tolist() == expected


# --- Constraints ---


CONSTRAINED = {
    size: lambda arrays, size=size: {"strategy": Constrained(size, *arrays)} for size in (1, 2, 16)
}


def tables_of(phrases, P, C):
    return tuple(map(jnp.stack, zip(*(phrase_tables(of_one, P, C) for of_one in phrases))))


def contains(output, phrase):
    starts = range(len(output) - len(phrase) + 1)
    return any(output[i : i + len(phrase)] == phrase for i in starts)


def test_how_much_of_a_phrase_an_output_ends_with():
    """a a b: after a a, another a leaves a a; b completes it."""
    phrase_PC, next_PCC = phrase_tables([(5, 5, 6), (4,)], 2, 4)
    assert phrase_PC.tolist() == [[5, 5, 6, PAD], [4, PAD, PAD, PAD]]
    assert next_PCC[0, :3, :3].tolist() == [[1, 1, 0], [2, 2, 0], [2, 2, 3]]
    assert next_PCC[1, 0, 0] == 1


PHRASES = [
    [],
    [(3,)],
    [(4, 5)],
    [(4, 5), (4, 6)],  # they begin alike
    [(3, 3, 4)],
    [(5, 6), (6, 5)],  # they overlap
    [(6,), (5,), (4,)],
]


def test_the_best_that_contain_all_phrases():
    phrases_B, L = [[], [(4, 5), (4,)], *PHRASES[4:]], 4  # three tokens and EOS
    B = len(phrases_B)
    tables = random_tables(B, seed=10)
    # 64 hypotheses are live at the end. Without phrases, 16 of them.
    found = search(
        tables,
        jnp.full(B, L),
        ALPHA,
        beam_size=16 * 5,
        longest=L,
        parts=CONSTRAINED[16],
        arrays=tables_of(phrases_B, 4, 4),
    )
    for b, phrases in enumerate(phrases_B):
        scores = scores_of(
            all_outputs(tables[b], L),
            ALPHA,
            lambda output: all(contains(output, phrase) for phrase in phrases),  # noqa: B023
        )
        best = max(scores, key=scores.get)
        assert outputs_of(found, b)[0] == best
        assert found.scores_BM[b, 0] == pytest.approx(scores[best], rel=1e-5)


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_narrow_beam_contains_all_phrases(beam_size):
    """Without phrases it is beam search."""
    B, longest, P, C = len(PHRASES), 9, 4, 4
    lengths_B, arrays = np.full(B, longest), tables_of(PHRASES, P, C)
    lengths_B[-1] = 4  # three tokens and EOS: each output is a permutation
    options = dict(longest=longest, nbest=beam_size)
    M = beam_size * 5  # no sentence has more than 4 tokens of phrases
    for seed in range(3):
        tables = random_tables(B, seed=seed + 11)
        parts = CONSTRAINED[beam_size]
        found = search(tables, lengths_B, ALPHA, **options, beam_size=M, parts=parts, arrays=arrays)
        plain = search(tables[:1], lengths_B[:1], ALPHA, **options, beam_size=beam_size)
        assert outputs_of(found, 0)[:beam_size] == outputs_of(plain, 0)[:beam_size]
        assert sorted(outputs_of(found, B - 1)[0]) == [EOS, 4, 5, 6]
        for b, phrases in enumerate(PHRASES):
            outputs = outputs_of(found, b)[:beam_size]
            assert all(outputs)
            assert len(set(outputs)) == len(outputs)
            for output, log_prob in zip(outputs, found.log_probs_BM[b]):
                assert all(contains(output, phrase) for phrase in phrases)
                assert log_prob == pytest.approx(forced_log_prob(tables[b], output), rel=1e-4)
