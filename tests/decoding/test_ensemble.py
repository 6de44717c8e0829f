"""Models searched as one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from small_configs import sizes_of
from test_transformer import small, stepwise

from configs import convs2s_iwslt, rnn_bahdanau
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.search import Settings, beam_search
from transformer.models.convolutional.convolutional_blocks import ConvolutionalConfig
from transformer.models.family import build_model
from transformer.models.rnn.rnn_config import RNNConfig

SRC = jnp.array([[3, 0, 5, 7, 0], [2, 4, 6, 8, 9]])
M, LONGEST = 3, 7


def families():
    """Three models of one vocabulary."""
    transformer = small(num_encoder_layers=1)
    sizes = sizes_of(19, 23)
    rnn = RNNConfig(**rnn_bahdanau.get_model())
    rnn = dataclasses.replace(rnn, embedding_size=5, hidden_size=7, attention_size=3)
    convolutional = ConvolutionalConfig(**convs2s_iwslt.get_model())
    convolutional = dataclasses.replace(
        convolutional, embedding_size=5, encoder_blocks="7x3x1", decoder_blocks="7x2x1"
    )
    return [transformer, build_model(rnn, sizes), build_model(convolutional, sizes)]


def logits_of(model, params, tokens_NT, extra=None, src=SRC):
    """Step by step, [N, T, V]."""
    return jax.jit(lambda params: stepwise(model.bind(params, extra), src, tokens_NT)[0])(params)


def found(model, params, extra=None):
    @jax.jit
    def search(params):
        bound = model.bind(params, extra)
        cache = bound.init_cache(bound.encode(SRC), SRC, M, LONGEST)
        lengths = jnp.array([LONGEST, LONGEST - 2])
        return beam_search(
            bound.decode_step,
            cache,
            lengths,
            Settings(beam_size=M, alpha=0.6, longest=LONGEST),
        )

    return search(params)


def test_the_mean_of_probabilities(random_params):
    models = families()
    params = [random_params(model) for model in models]
    src = SRC.at[:, 1].set(1)  # padding between words is for the Transformer alone
    tokens_NT = jnp.asarray(np.random.default_rng(1).integers(1, 9, (2 * M, LONGEST)))
    alone = [
        jax.nn.softmax(logits_of(model, own, tokens_NT, src=src))
        for model, own in zip(models, params, strict=True)
    ]
    together = logits_of(Ensemble(models), params, tokens_NT, 3 * [{}], src=src)
    np.testing.assert_allclose(np.exp(together), np.mean(alone, axis=0), atol=1e-6)
    assert np.abs(np.mean(alone, axis=0) - alone[0]).max() > 0.01


def test_a_search_with_the_same_model_twice(random_params):
    """So every hypothesis keeps its own cache in both."""
    model = small(num_encoder_layers=1)
    params, both = random_params(model), Ensemble([model, model])
    alone, twice = found(model, params), found(both, [params, params], [{}, {}])
    np.testing.assert_array_equal(alone.tokens_BML, twice.tokens_BML)
    np.testing.assert_allclose(alone.scores_BM, twice.scores_BM, atol=1e-5)
    other = found(both, [params, random_params(model, 5)], [{}, {}])
    assert not np.array_equal(alone.tokens_BML, other.tokens_BML)
