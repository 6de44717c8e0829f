import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_tables import (
    STATES,
    V,
    all_outputs,
    assert_best,
    log_probs_after,
    outputs_of,
    penalty,
    random_tables,
    scores_of,
    search,
)
from small_configs import MODEL, sizes_of

from transformer.decoding import search as search_module
from transformer.decoding.rules import Coverage, MinLength, NoRepeat, Prefix
from transformer.decoding.search import Hypotheses, Settings, beam_search, gnmt_length_penalty
from transformer.decoding.strategies import Sample
from transformer.decoding.top_k import top_k
from transformer.models.family import build_model

PAD, BOS, EOS = 0, 1, 2


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, 1.0), (5, 1.358655), (10, 1.732862), (20, 2.354362), (25, 2.626528), (50, 3.778565)],
)
def test_gnmt_length_penalty(length, expected):
    assert float(gnmt_length_penalty(length, 0.6)) == pytest.approx(expected, abs=1e-6)
    assert float(gnmt_length_penalty(length, 0.0)) == 1.0


# ---- Small graphs, by hand ----


LONGEST, MOST_TOKENS, MOST_PREFIXES = 5, 5, 5


@functools.partial(jax.jit, static_argnames="beam_size")
def search_table(prefix_PL, logits_PV, elsewhere_V, max_length, alpha, beam_size):
    """The next token's logits are those of the row whose prefix is that of the hypothesis."""

    def step_fn(tokens_N, cache):
        step, prefix_NL = cache["step"], cache["hypothesis"]
        # Slot 0 takes the BOS that every search begins with.
        is_new_1L = jnp.arange(LONGEST + 1)[None] == step
        prefix_NL = jnp.where(is_new_1L, tokens_N[:, None], prefix_NL)
        is_here_NP = (prefix_NL[:, None] == prefix_PL[None]).all(axis=2)
        found_NV = logits_PV[is_here_NP.argmax(axis=1)]
        logits_NV = jnp.where(is_here_NP.any(axis=1, keepdims=True), found_NV, elsewhere_V[None])
        return logits_NV, {**cache, "step": step + 1, "hypothesis": prefix_NL}

    cache = {
        "step": jnp.zeros((), jnp.int32),
        "sentence": jnp.zeros((1,)),
        "hypothesis": jnp.zeros((beam_size, LONGEST + 1), jnp.int32),
    }
    return beam_search(
        step_fn,
        cache,
        max_length[None],
        Settings(beam_size=beam_size, alpha=alpha, longest=LONGEST),
    )


def search_graph(probabilities, max_length, *, beam_size, alpha):
    """A search where the next token depends on the whole prefix: {prefix: {token: prob}}."""
    prefix_PL = np.full((MOST_PREFIXES, LONGEST + 1), -1, np.int32)
    logits_PV = np.full((MOST_PREFIXES, MOST_TOKENS), -np.inf, np.float32)
    for p, (prefix, following) in enumerate(probabilities.items()):
        prefix_PL[p] = [BOS, *prefix, *[PAD] * (LONGEST - len(prefix))]
        logits_PV[p, list(following)] = np.log(list(following.values()))
    # Uniform where the graph ends.
    known = 1 + max(token for following in probabilities.values() for token in following)
    elsewhere_V = np.where(np.arange(MOST_TOKENS) < known, 0, -np.inf).astype(np.float32)
    found = search_table(
        prefix_PL, logits_PV, elsewhere_V, np.int32(max_length), alpha, beam_size=beam_size
    )
    found = Hypotheses(*(np.asarray(x[0]) for x in found))
    return found._replace(tokens_BML=found.tokens_BML[:, :max_length])


A, B = 3, 4
GREEDY = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.45, EOS: 0.55}, (B,): {A: 0.05, EOS: 0.95}}
# EOS at once has .4, more than any longer output: A A EOS has .6 * .51 * .9 = .275.
ENDS = {(): {A: 0.6, EOS: 0.4}, (A,): {A: 0.51, EOS: 0.49}, (A, A): {A: 0.1, EOS: 0.9}}
# Tensor2Tensor's example, its ids 0, 1, 2 as A, EOS, B here.
TWO_BEAMS = {
    (): {A: 0.1, EOS: 0.1, B: 0.8},
    (B,): {A: 0.4, EOS: 0.5, B: 0.1},
    (A,): {A: 0.2, EOS: 0.4, B: 0.4},
    (B, A): {A: 0.05, EOS: 0.9, B: 0.05},
    (B, B): {A: 0.4, EOS: 0.4, B: 0.2},
}
LONG = {(): {A: 0.9, EOS: 0.1}, (A,): {A: 0.75, EOS: 0.25}}
GRAPHS = {  # graph, maximum length, beam size and alpha; outputs and their probabilities
    "greedy search": (GREEDY, 2, 1, 0.0, [[A, EOS]], [0.33]),
    "misses what a beam of two finds": (GREEDY, 2, 2, 0.0, [[B, EOS], [A, EOS]], [0.38, 0.33]),
    "a beam of one ends only where the end is likeliest": (
        *(ENDS, 5, 1, 0.6),
        *([[A, A, EOS, PAD, PAD]], [0.2754]),
    ),
    # B EOS has .8 * .5. No live hypothesis can beat it, B A with .8 * .4 least of all:
    # the search ends before B A EOS could take second place from EOS alone.
    "early termination": (TWO_BEAMS, 3, 2, 0.0, [[B, EOS, PAD], [EOS, PAD, PAD]], [0.4, 0.1]),
    "alpha favours the longer": (
        *(TWO_BEAMS, 3, 2, 3.5),
        *([[B, A, EOS], [B, EOS, PAD]], [0.288, 0.4]),
    ),
    "EOS by force has its own probability": (LONG, 2, 1, 0.0, [[A, EOS]], [0.9 * 0.25]),
    "a beam that nothing fills": (LONG, 1, 2, 0.0, [[EOS], [PAD]], [0.1, 0]),
}


def test_graphs():
    for name, (graph, longest, beam_size, alpha, outputs, probabilities) in GRAPHS.items():
        found = search_graph(graph, longest, beam_size=beam_size, alpha=alpha)
        np.testing.assert_array_equal(found.tokens_BML, outputs, name)
        np.testing.assert_allclose(np.exp(found.log_probs_BM), probabilities, 1e-6, err_msg=name)
        scores = found.log_probs_BM / penalty((np.array(outputs) != PAD).sum(axis=1), alpha)
        np.testing.assert_allclose(found.scores_BM, scores, 1e-6, err_msg=name)


def test_the_search_takes_no_more_steps_than_its_slowest_sentence():
    # EOS has .9 from the first step for sentence 0, from the fourth for sentence 1.
    steps = []

    def step_fn(tokens_N, cache):
        jax.debug.callback(lambda step: steps.append(int(step)), cache["step"])
        eos = jnp.where(cache["step"] >= cache["sentence"], 0.9, 0.05)
        others = (1 - eos) / 2
        probabilities = jnp.stack([0 * eos, 0 * eos, eos, others, others], axis=1)
        return jnp.log(probabilities), {**cache, "step": cache["step"] + 1}

    cache = {"step": np.int32(0), "sentence": np.array([0, 3]), "hypothesis": {}}
    settings = Settings(beam_size=1, alpha=0.0, longest=31)
    found = jax.jit(lambda cache: beam_search(step_fn, cache, np.array([29, 29]), settings))(cache)
    jax.effects_barrier()
    assert sorted(steps) == [0, 1, 2, 3]
    assert outputs_of(found, 0) == [(EOS,)]
    assert [len(output) for output in outputs_of(found, 1)] == [4]


# ---- Random probabilities of every prefix ----

SENTENCES = 7  # so few that no part of them is searched by itself, which is compiled too


def whole_beam_search(table_XV, max_length, beam_size, alpha, form):
    """[(score, output)], best first, of a beam search that goes on to the maximum length."""
    live, finished = [(0.0, ())], []
    for length in range(1, max_length + 1):
        candidates = []
        for log_prob, prefix in live:
            following = log_probs_after(table_XV, prefix)
            tokens = [EOS] if length == max_length else range(EOS, V)
            candidates += [(log_prob + following[t], (*prefix, t)) for t in tokens]
        candidates = sorted(candidates, reverse=True)[: 2 * beam_size if beam_size > 1 else 1]
        divisor = penalty(length, alpha, form)
        finished += [(x / divisor, out) for x, out in candidates if out[-1] == EOS]
        live = [(x, out) for x, out in candidates if out[-1] != EOS][:beam_size]
    return sorted(finished, reverse=True)[:beam_size]


def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_outputs():
    # 4 tokens that go on: 4 * 4 * 4 hypotheses are live when the fourth must be EOS.
    tables, max_length, lengths = random_tables(SENTENCES), 4, set()
    tables[:, :, EOS] -= 1
    for alpha in (0.0, 0.6, 3.5):
        found = search(
            tables,
            np.full(SENTENCES, max_length),
            alpha,
            beam_size=64,
            longest=max_length,
            nbest=64,
        )
        for b in range(SENTENCES):
            scores = scores_of(all_outputs(tables[b], max_length), alpha)
            assert len(scores) == 1 + 4 + 16 + 64
            lengths.add(len(assert_best(found, b, scores)[0]))
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("beam_size", "nbest", "form"), [(1, 1, "power"), (3, 1, "gnmt"), (3, 2, "gnmt")]
)
def test_early_termination_changes_nothing_about_the_best(beam_size, nbest, form):
    longest, fewer = 11, 0
    for seed in range(3):
        tables = random_tables(SENTENCES, seed=seed + 1)
        tables[:, :, EOS] += 0.5
        max_length_B = 3 * seed + np.arange(SENTENCES) % (longest - 6) + 1
        asked = dict(beam_size=beam_size, longest=longest, nbest=nbest, form=form)
        for alpha in (0.0, 0.6, 2.5):
            found = search(tables, max_length_B, alpha, **asked)
            for b, max_length in enumerate(max_length_B):
                expected = whole_beam_search(tables[b], max_length, beam_size, alpha, form)
                outputs = outputs_of(found, b)
                best = [output for _, output in expected[:nbest]]
                assert list(filter(None, outputs[:nbest])) == best
                scores = [score for score, _ in expected[:nbest]]
                np.testing.assert_allclose(found.scores_BM[b, : len(scores)], scores, rtol=1e-5)
                fewer += outputs != [output for _, output in expected]
                check_hypotheses(found, b, tables[b], max_length, alpha, form)
    if beam_size == 3 and nbest == 1:
        assert fewer, "no search ended early, so this compared nothing"


def check_hypotheses(found, b, table_XV, max_length, alpha, form):
    """Each is what it says, and no two are the same."""
    scores, outputs = found.scores_BM[b], outputs_of(found, b)
    assert (scores[:-1] >= scores[1:]).all()
    filled = list(filter(None, outputs))
    assert len(set(filled)) == len(filled) == np.isfinite(scores).sum() > 0
    assert np.isneginf(found.log_probs_BM[b, len(filled) :]).all()
    for m, tokens in enumerate(filled):
        assert found.tokens_BML[b, m].tolist()[: len(tokens)] == list(tokens)
        assert tokens[-1] == EOS < min(tokens[:-1], default=V)
        assert len(tokens) <= max_length
        of_tokens = np.zeros(found.tokens_BML.shape[2])
        of_tokens[: len(tokens)] = [
            log_probs_after(table_XV, tokens[:t])[x] for t, x in enumerate(tokens)
        ]
        np.testing.assert_allclose(found.token_log_probs_BML[b, m], of_tokens, rtol=1e-4)
        log_prob = of_tokens.sum()
        assert found.log_probs_BM[b, m] == pytest.approx(log_prob, rel=1e-5)
        expected = log_prob / penalty(len(tokens), alpha, form)
        assert scores[m] == pytest.approx(expected, rel=1e-5)


def all_parts(arrays):
    prefix_BP, real_BS, min_length_B, seed_B = arrays
    rules = [Prefix(prefix_BP), NoRepeat(2), Coverage(0.7, real_BS), MinLength(min_length_B)]
    return {"strategy": Sample(0.8, 0, 0.9, jax.vmap(jax.random.key)(seed_B)), "rules": rules}


def test_a_sentence_does_not_depend_on_its_batch_nor_on_padding_rows():
    B, longest = 19, 13
    tables = random_tables(B, seed=3)
    # Sentences that end soon beside others that go on. Of 19, 9 go on, as a half of the batch, and
    # 4 of them to the end, as a quarter.
    goes_on_B, to_the_end_B = np.arange(B) % 2 == 1, np.arange(B) % 4 == 3
    tables[~goes_on_B, :, EOS] += 2
    tables[goes_on_B, :, EOS] -= 30
    max_length_B = np.where(to_the_end_B, 13, np.where(goes_on_B, 8, np.arange(B) % 6))
    rng = np.random.default_rng(8)
    prefix_BP = np.where(goes_on_B[:, None], rng.integers(3, 7, (B, 3)), PAD)
    real_BS = np.arange(5) < rng.integers(1, 6, (B, 1))
    min_length_B = np.where(to_the_end_B, 9, np.where(goes_on_B, 7, 0))
    arrays = prefix_BP, real_BS, min_length_B, np.arange(B)
    attention_BXS = np.where(real_BS[:, None], rng.uniform(size=(B, STATES, 5)), 0.0)

    def found(rows):
        return search(
            tables[rows],
            max_length_B[rows],
            0.6,
            beam_size=3,
            longest=longest,
            nbest=2,
            parts=all_parts,
            arrays=tuple(x[rows] for x in arrays),
            attention_BXS=attention_BXS[rows].astype(np.float32),
        )

    together = found(slice(None))
    assert np.isneginf(together.scores_BM[~goes_on_B & (max_length_B == 0)]).all()
    lengths_B = (np.asarray(together.tokens_BML[:, 0]) != PAD).sum(axis=1)
    assert lengths_B[goes_on_B].max() > 6 > lengths_B[~goes_on_B].max() > 0
    for b in range(B):
        alone = found(slice(b, b + 1))
        np.testing.assert_array_equal(together.tokens_BML[b], alone.tokens_BML[0])
        np.testing.assert_allclose(together.scores_BM[b], alone.scores_BM[0], rtol=1e-6)
        np.testing.assert_allclose(together.log_probs_BM[b], alone.log_probs_BM[0], rtol=1e-6)


# ---- With a Transformer ----


def test_parts_of_a_batch_a_cache_that_grows_and_forced_decoding(random_params, monkeypatch):
    """A search in parts has the scores of the model; what it finds is tested with tables, above."""
    config = dataclasses.replace(MODEL, d_model=13, d_ff=17, num_heads=3, d_k=5, d_v=2, dropout=0.1)
    model = build_model(config, sizes_of(11))
    params, M, B, longest = random_params(model), 2, 8, 40
    src = np.random.default_rng(6).integers(3, 11, (B, 5), np.int32)
    src[1, 1] = src[2, 2:] = src[6] = PAD
    src = jnp.asarray(src)
    max_length_B = np.full(B, 5)
    max_length_B[[0, 3, 6]] = 20, 38, 0  # of the half, and of a sentence without an output

    def logits_that_go_on(logits_NV):
        return logits_NV.at[..., EOS].add(-30)  # as long as they may

    def found():
        sizes = []

        @jax.jit
        def run(params):
            bound = model.bind(params)

            def step_fn(tokens_N, cache):
                sizes.append(len(tokens_N) // M)
                logits_NV, cache = bound.decode_step(tokens_N, cache)
                return logits_that_go_on(logits_NV), cache

            cache = bound.init_cache(bound.encode(src), src, M, longest)
            settings = Settings(beam_size=M, alpha=0.6, longest=longest)
            return beam_search(step_fn, cache, max_length_B, settings)

        return jax.tree.map(np.asarray, run(params)), set(sizes)

    monkeypatch.setattr(search_module, "LARGE_CACHE", 0)
    in_parts, sizes = found()
    assert sizes == {8, 4}
    lengths_BM = (in_parts.tokens_BML != PAD).sum(axis=2)
    np.testing.assert_array_equal(lengths_BM[:, 0], max_length_B)

    @jax.jit
    def force(params, tokens_NL):
        tgt_in = jnp.pad(tokens_NL[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        logits = logits_that_go_on(model.bind(params)(jnp.repeat(src, M, axis=0), tgt_in))
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens_NL[:, :, None], axis=2)
        return jnp.sum(log_probs[:, :, 0], axis=1, where=tokens_NL != PAD).reshape(-1, M)

    filled = np.isfinite(in_parts.scores_BM)
    assert filled[:, 0].tolist() == (max_length_B > 0).tolist()
    forced = np.asarray(force(params, in_parts.tokens_BML.reshape(-1, longest)))
    np.testing.assert_allclose(in_parts.log_probs_BM[filled], forced[filled], rtol=1e-5)
    expected = (forced / penalty(lengths_BM, 0.6))[filled]
    np.testing.assert_allclose(in_parts.scores_BM[filled], expected, rtol=1e-5)


def test_the_largest_of_many_numbers_are_those_of_jax():
    x_BX = np.random.default_rng(9).integers(-3, 60, (5, 128 * 20 + 37)).astype(np.float32)
    x_BX[1] = x_BX[2, 7:] = x_BX[3] = -np.inf  # as of what no rule allows; many are equal
    x_BX[3, -1] = 1
    both = jax.jit(lambda x: (top_k(x, 9), jax.lax.top_k(x, 9)))(x_BX)
    for found, expected in zip(*both, strict=True):
        np.testing.assert_array_equal(found, expected)
