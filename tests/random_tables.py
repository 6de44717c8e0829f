"""Searches of sentences whose next token depends on the whole prefix, in a random way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding.search import LENGTH_PENALTIES, Settings, beam_search

PAD, BOS, EOS = 0, 1, 2
V, STATES = 7, 997


def random_tables(batch_size, seed=0):
    """Logits [B, STATES, V]: a hash of the whole prefix chooses the row."""
    tables = np.random.default_rng(seed).normal(0, 1.5, (batch_size, STATES, V))
    return tables.astype(np.float32)


def next_state(state, token, step):
    return (31 * state + 7 * token + step + 1) % STATES


@functools.partial(jax.jit, static_argnames=("beam_size", "longest", "nbest", "form", "parts"))
def _search(
    tables_BXV,
    max_length_B,
    alpha,
    *,
    beam_size,
    longest,
    nbest=1,
    form="gnmt",
    parts=lambda arrays: {},
    arrays=None,
    attention_BXS=None,
):
    def step_fn(tokens_N, cache):
        state_N = next_state(cache["hypothesis"]["state"], tokens_N, cache["step"])
        sentence_N = jnp.arange(len(tokens_N)) // beam_size
        logits_NV = cache["sentence"]["tables"][sentence_N, state_N]
        cache = {**cache, "step": cache["step"] + 1, "hypothesis": {"state": state_N}}
        if "attention" in cache:
            cache["attention"] = cache["sentence"]["attention"][sentence_N, state_N]
        return logits_NV, cache

    N = len(tables_BXV) * beam_size
    cache = {
        "step": jnp.zeros((), jnp.int32),
        "sentence": {"tables": tables_BXV, "attention": attention_BXS},
        "hypothesis": {"state": jnp.zeros(N, jnp.int32)},
    }
    if attention_BXS is not None:
        cache["attention"] = jnp.zeros((N, attention_BXS.shape[2]))
    return beam_search(
        step_fn,
        cache,
        max_length_B,
        Settings(
            beam_size=beam_size,
            alpha=alpha,
            longest=longest,
            length_penalty=LENGTH_PENALTIES[form],
            nbest=nbest,
        ),
        **parts(arrays),
    )


def search(*arguments, **keywords):
    """The hypotheses as NumPy arrays. parts(arrays): the choice and the rules of the search."""
    return jax.tree.map(np.asarray, _search(*arguments, **keywords))


def log_probs_after(table_XV, prefix):
    state = 0
    for step, token in enumerate([BOS, *prefix]):
        state = next_state(state, token, step)
    logits = table_XV[state].astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def forced_log_prob(table_XV, tokens):
    return sum(log_probs_after(table_XV, tokens[:t])[token] for t, token in enumerate(tokens))


def penalty(length, alpha, form="gnmt"):
    return ((5 + length) / 6) ** alpha if form == "gnmt" else float(length) ** alpha


def all_outputs(table_XV, max_length):
    """{output: log-probability} of every sequence that ends in EOS within the length."""
    outputs, prefixes = {}, {(): 0.0}
    for length in range(1, max_length + 1):
        longer = {}
        for prefix, log_prob in prefixes.items():
            following = log_probs_after(table_XV, prefix)
            outputs[*prefix, EOS] = log_prob + following[EOS]
            if length < max_length:
                for token in range(EOS + 1, V):
                    longer[*prefix, token] = log_prob + following[token]
        prefixes = longer
    return outputs


def outputs_of(found, b):
    """The hypotheses of sentence b as tuples without the padding."""
    return [tuple(int(t) for t in row if t != PAD) for row in np.asarray(found.tokens_BML)[b]]


def scores_of(log_probs, alpha, is_allowed=lambda output: True):
    """The scores of those of `all_outputs` that are allowed."""
    return {
        output: log_prob / penalty(len(output), alpha)
        for output, log_prob in log_probs.items()
        if is_allowed(output)
    }


def assert_best(found, b, scores, rtol=1e-5):
    """Sentence b has the best of these outputs, as many as there are or as there is room for."""
    M = found.scores_BM.shape[1]
    best = sorted(scores, key=scores.get, reverse=True)[:M]
    assert list(filter(None, outputs_of(found, b))) == best
    expected = np.full(M, -np.inf)
    expected[: len(best)] = [scores[output] for output in best]
    np.testing.assert_allclose(found.scores_BM[b], expected, rtol=rtol)
    return best
