"""Models searched as one; their probabilities and attention are in test_forced.py."""

import jax
import jax.numpy as jnp
import numpy as np
from small_configs import MODEL, sizes_of

from transformer.decoding.ensemble import Ensemble
from transformer.decoding.search import Settings, beam_search
from transformer.models.family import build_model

SRC = jnp.array([[3, 0, 5, 7, 0], [2, 4, 6, 8, 9]])
M, LONGEST = 3, 7


def test_a_search_with_the_same_model_twice(random_params):
    """So every hypothesis keeps its own cache in both."""
    model = build_model(MODEL, sizes_of(19))

    def search(model, params, extra):
        bound = model.bind(params, extra)
        cache = bound.init_cache(bound.encode(SRC), SRC, M, LONGEST)
        settings = Settings(beam_size=M, alpha=0.6, longest=LONGEST)
        return beam_search(bound.decode_step, cache, jnp.array([LONGEST, 5]), settings)

    found = jax.jit(search, static_argnums=0)
    params, both = random_params(model), Ensemble((model, model))
    alone, twice = found(model, params, {}), found(both, [params, params], [{}, {}])
    np.testing.assert_array_equal(alone.tokens_BML, twice.tokens_BML)
    np.testing.assert_allclose(alone.scores_BM, twice.scores_BM, atol=1e-5)
    other = found(both, [params, random_params(model, 5)], [{}, {}])
    assert not np.array_equal(alone.tokens_BML, other.tokens_BML)
