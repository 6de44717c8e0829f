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
    search,
)

from transformer.decoding.strategies import Constrained, DiverseBeam, Sample, phrase_tables

ALPHA = 0.6


# --- Diverse groups ---


def diverse(groups, strength):
    return lambda _: {"strategy": DiverseBeam(groups, strength)}


DIVERSE = {(3, 0.0): diverse(3, 0.0), (3, 0.5): diverse(3, 0.5), (6, 1.5): diverse(6, 1.5)}


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


@pytest.mark.parametrize(("groups", "strength"), DIVERSE)
def test_groups_are_those_of_a_plain_loop(groups, strength):
    B, M, longest = 7, 6, 5
    tables = random_tables(B, seed=7)
    parts = DIVERSE[groups, strength]
    # As many as there may be are asked for, so that no search ends early.
    found = search(
        tables, np.full(B, longest), ALPHA, beam_size=M, longest=longest, nbest=M, parts=parts
    )
    for b in range(B):
        scores = grouped_search(tables[b], longest, groups, M // groups, strength)
        best = sorted(scores, key=scores.get, reverse=True)[:M]
        outputs = list(filter(None, outputs_of(found, b)))
        assert outputs == best
        log_probs = [forced_log_prob(tables[b], output) for output in outputs]
        np.testing.assert_allclose(found.log_probs_BM[b, : len(best)], log_probs, rtol=1e-5)


# --- Samples ---


def sampling(**options):
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
    return lambda seed_B: {"strategy": Sample(**options, key_B=jax.vmap(jax.random.key)(seed_B))}


PLAIN, COOL, FEW = sampling(), sampling(temperature=0.5), sampling(top_k=2)
SAMPLES = 4000


@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        (PLAIN, lambda p: p),
        (COOL, lambda p: p**2 / (p**2).sum()),
        (FEW, lambda p: np.where(p >= np.sort(p)[-2], p, 0) / np.sort(p)[-2:].sum()),
    ],
    ids=["plain", "temperature", "top_k"],
)
def test_samples_have_the_probabilities_asked_for(parts, shape):
    tables = random_tables(1, seed=8)
    found = search(
        tables,
        jnp.array([2]),
        0.0,
        beam_size=SAMPLES,
        longest=2,
        nbest=SAMPLES,
        parts=parts,
        arrays=jnp.array([3], jnp.uint32),
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


@pytest.mark.parametrize(("top_p", "expected"), [(0.8, 2), (0.81, 3), (0.01, 1), (0.99, 4)])
def test_nucleus(top_p, expected):
    """The fewest tokens whose probabilities sum up to top_p."""
    sample = Sample(1.0, 0, top_p, jnp.zeros(1))
    logits = sample.restricted(jnp.log(jnp.array([[[0.15, 0.5, 0.05, 0.3]]])))
    assert np.isfinite(logits).sum() == expected
    assert np.isfinite(logits[0, 0, 1])


def test_temperature_then_top_k_then_top_p():
    # 2 x log p: .25, .09, .0225 of .3625: without the last .69 and .248 of .735 and .265.
    sample = Sample(0.5, 2, 0.73, jnp.zeros(1))
    logits = sample.restricted(jnp.log(jnp.array([[[0.5, 0.3, 0.15, 0.05]]])))
    assert np.isfinite(logits).tolist() == [[[True, False, False, False]]]


def test_samples_do_not_depend_on_the_batch():
    tables, longest = random_tables(5, seed=9), 9
    options = dict(beam_size=3, longest=longest, nbest=3, parts=PLAIN)
    seeds = jnp.array([5, 6, 5, 7, 8], jnp.uint32)
    tables[2] = tables[0]
    together = search(tables, jnp.full(5, longest), ALPHA, **options, arrays=seeds)
    alone = search(tables[2:3], jnp.full(1, longest), ALPHA, **options, arrays=seeds[2:3])
    other = search(tables[2:3], jnp.full(1, longest), ALPHA, **options, arrays=seeds[3:4])
    assert outputs_of(together, 0) == outputs_of(together, 2) == outputs_of(alone, 0)
    assert outputs_of(other, 0) != outputs_of(alone, 0)
    assert all(output[-1] == EOS for b in range(5) for output in outputs_of(together, b))


# --- Constraints ---


CONSTRAINED = {
    size: lambda arrays, size=size: {"strategy": Constrained(size, *arrays)} for size in (1, 2, 64)
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
    B, L = len(PHRASES), 5
    tables = random_tables(B, seed=10)
    # 256 hypotheses are live at the end. Without phrases, 64 of them.
    found = search(
        tables,
        jnp.full(B, L),
        ALPHA,
        beam_size=64 * 5,
        longest=L,
        parts=CONSTRAINED[64],
        arrays=tables_of(PHRASES, 4, 4),
    )
    for b, phrases in enumerate(PHRASES):
        scores = {
            output: log_prob / penalty(len(output), ALPHA)
            for output, log_prob in all_outputs(tables[b], L).items()
            if all(contains(output, phrase) for phrase in phrases)
        }
        best = max(scores, key=scores.get)
        assert outputs_of(found, b)[0] == best
        assert found.scores_BM[b, 0] == pytest.approx(scores[best], rel=1e-5)


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_narrow_beam_contains_all_phrases(beam_size):
    """Without phrases it is beam search, and no sentence depends on those beside it."""
    B, longest, P, C = len(PHRASES), 9, 4, 4
    for seed in range(3):
        tables = random_tables(B, seed=seed + 11)
        options = dict(longest=longest, nbest=beam_size)
        lengths_B, arrays = jnp.full(B, longest), tables_of(PHRASES, P, C)
        parts = CONSTRAINED[beam_size]
        M = beam_size * 5  # no sentence has more than 4 tokens of phrases
        found = search(tables, lengths_B, ALPHA, **options, beam_size=M, parts=parts, arrays=arrays)
        plain = search(tables[:1], lengths_B[:1], ALPHA, **options, beam_size=beam_size)
        assert outputs_of(found, 0)[:beam_size] == outputs_of(plain, 0)[:beam_size]
        one = search(
            tables[1:2],
            lengths_B[:1],
            ALPHA,
            **options,
            beam_size=beam_size * 2,
            parts=parts,
            arrays=tables_of(PHRASES[1:2], P, C),
        )
        assert outputs_of(found, 1)[:beam_size] == outputs_of(one, 0)[:beam_size]
        for b, phrases in enumerate(PHRASES):
            outputs = outputs_of(found, b)[:beam_size]
            assert all(outputs)
            assert len(set(outputs)) == len(outputs)
            for output, log_prob in zip(outputs, found.log_probs_BM[b]):
                assert all(contains(output, phrase) for phrase in phrases)
                assert log_prob == pytest.approx(forced_log_prob(tables[b], output), rel=1e-4)


def test_phrases_are_found_in_the_least_room():
    """Three tokens in any order, and EOS: every output is a permutation."""
    tables = random_tables(1, seed=12)
    tables[:, :, EOS] += 5
    found = search(
        tables,
        jnp.array([4]),
        ALPHA,
        beam_size=4,
        longest=4,
        parts=CONSTRAINED[1],
        arrays=tables_of([[(3,), (5,), (4,)]], 4, 1),
    )
    assert sorted(outputs_of(found, 0)[0]) == [EOS, 3, 4, 5]
