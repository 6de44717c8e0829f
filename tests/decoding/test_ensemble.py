"""Models searched as one."""

import jax
import jax.numpy as jnp
import numpy as np
from test_transformer import small, stepwise

from transformer.decoding.ensemble import Ensemble, stack
from transformer.decoding.search import beam_search

SRC = jnp.array([[3, 0, 5, 7, 0], [2, 4, 6, 8, 9]])
M, LONGEST = 3, 7


def logits_of(model, params, tokens_NT):
    """Step by step, [N, T, V]."""
    return jax.jit(lambda params: stepwise(model.bind(params, {}), SRC, tokens_NT)[0])(params)


def found(model, params):
    @jax.jit
    def search(params):
        bound = model.bind(params, {})
        cache = bound.init_cache(bound.encode(SRC), SRC, M, LONGEST)
        lengths = jnp.array([LONGEST, LONGEST - 2])
        return beam_search(
            bound.decode_step, cache, lengths, beam_size=M, alpha=0.6, longest=LONGEST
        )

    return search(params)


def test_the_mean_of_probabilities(random_params):
    model = small(num_encoder_layers=1)
    three = [random_params(model, seed) for seed in (1, 2, 3)]
    tokens_NT = jnp.asarray(np.random.default_rng(1).integers(1, 9, (2 * M, LONGEST)))
    mean = np.mean([jax.nn.softmax(logits_of(model, p, tokens_NT)) for p in three], axis=0)
    together = logits_of(Ensemble(model), stack(three), tokens_NT)
    np.testing.assert_allclose(np.exp(together), mean, atol=1e-6)
    assert np.abs(mean - jax.nn.softmax(logits_of(model, three[0], tokens_NT))).max() > 0.01


def test_a_search_with_the_same_model_twice(random_params):
    """So every hypothesis keeps its own cache in both."""
    model = small(num_encoder_layers=1)
    params = random_params(model)
    alone, twice = found(model, params), found(Ensemble(model), stack([params, params]))
    np.testing.assert_array_equal(alone.tokens_BML, twice.tokens_BML)
    np.testing.assert_allclose(alone.scores_BM, twice.scores_BM, atol=1e-5)
    other = found(Ensemble(model), stack([params, random_params(model, 5)]))
    assert not np.array_equal(alone.tokens_BML, other.tokens_BML)
