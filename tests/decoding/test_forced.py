import dataclasses
import functools

import jax
import numpy as np
import pytest
from small_configs import MODEL, sizes_of

from configs import rnn_bahdanau, rnn_sutskever
from transformer.data.vocabulary import BOS, EOS
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.forced import ForcedDecoder
from transformer.models.family import build_model
from transformer.models.rnn.rnn import RNNConfig
from transformer.system.errors import UserError
from transformer.system.sharding import MeshConfig, make_mesh

DEEP = dataclasses.replace(MODEL, num_decoder_layers=3)
RNN = RNNConfig(**rnn_bahdanau.get_model().to_dict() | {"embedding_size": 6, "hidden_size": 7})
MESH = make_mesh(MeshConfig(0, 1, 1))
V = 11
# Targets shorter and longer than their sources, some beyond the narrowest batch.
LENGTHS = [(1, 3), (5, 2), (19, 1), (2, 23), (7, 7), (13, 0)]


def random_ids(length):
    return [*np.random.default_rng(length).integers(3, V, length).tolist(), EOS]


SOURCES = [random_ids(s) for s, _ in LENGTHS]
TARGETS = [random_ids(t + 31)[31:] for _, t in LENGTHS]


def full_forward(model, params):
    """Log-probabilities [T, V] and attention weights of each pair, by the model's own pass."""
    src, tgt_in = (np.zeros((6, max(map(len, rows))), int) for rows in (SOURCES, TARGETS))
    for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        src[b, : len(source)], tgt_in[b, : len(target)] = source, [BOS, *target[:-1]]
    run = jax.jit(lambda params: model.bind(params)(src, tgt_in, return_weights=True))
    logits, weights = jax.tree.map(np.asarray, run(params))
    found = []
    for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        T, S = len(target), len(source)
        own = jax.tree.map(lambda x: x[b : b + 1, ..., :T, :S], weights)  # noqa: B023
        logits_TV = logits[b, :T].astype(np.float64)
        found.append((logits_TV - np.log(np.exp(logits_TV).sum(-1, keepdims=True)), own))
    return found


def shown(config, weights):
    """Of the last layer but one, the mean of the heads, [T, S]."""
    if config == DEEP:
        return weights.cross[1][0].mean(axis=0)
    return weights[0]


@pytest.fixture(scope="module")
def decoded(random_params):
    """decoded(config): a model, its parameters, and what forced decoding finds."""

    @functools.cache
    def decode(config):
        model, done = build_model(config, sizes_of(V)), []
        params = random_params(model)
        asked = dict(attention=True, progress=done.append)
        found = ForcedDecoder(model, MESH).decode((params, {}), SOURCES, TARGETS, **asked)
        assert done[-1] == 6
        return model, params, found

    return decode


@pytest.mark.parametrize("config", [DEEP, RNN], ids=["transformer", "rnn"])
def test_it_is_the_full_forward_pass(config, decoded):
    model, params, found = decoded(config)
    hits = 0
    for target, forced, (log_probs_TV, weights) in zip(
        TARGETS, found, full_forward(model, params), strict=True
    ):
        expected_T = log_probs_TV[np.arange(len(target)), target]
        np.testing.assert_allclose(forced.log_probs_T, expected_T, rtol=2e-4, atol=2e-5)
        log_probs_TV[:, :EOS] = -np.inf  # PAD and BOS
        np.testing.assert_array_equal(forced.expected_T, log_probs_TV.argmax(-1))
        hits += (forced.expected_T == target).sum()
        np.testing.assert_allclose(forced.attention_TS, shown(config, weights), rtol=1e-3)
        np.testing.assert_allclose(forced.attention_TS.sum(axis=1), 1, rtol=1e-5)
    assert 0 < hits < 24


def test_an_ensemble_has_the_mean_of_probabilities_and_of_attention(decoded):
    models, params, apart = zip(*map(decoded, (DEEP, RNN)), strict=True)
    decoder, variables = ForcedDecoder(Ensemble(models), MESH), (params, [{}, {}])
    together = decoder.decode(variables, SOURCES, TARGETS, attention=True)
    for one, other, both in zip(*apart, together, strict=True):
        mean_T = np.logaddexp(one.log_probs_T, other.log_probs_T) - np.log(2)
        np.testing.assert_allclose(both.log_probs_T, mean_T, rtol=1e-4)
        mean_TS = (one.attention_TS + other.attention_TS) / 2
        np.testing.assert_allclose(both.attention_TS, mean_TS, rtol=1e-5)


def test_a_model_without_attention(random_params):
    """And what is compiled in advance is all that is needed."""
    small = {"embedding_size": 6, "hidden_size": 7}
    config = RNNConfig(**rnn_sutskever.get_config().model.to_dict() | small)
    model = build_model(config, sizes_of(V))
    decoder, variables = ForcedDecoder(model, MESH), (random_params(model), {})
    sources = [random_ids(2)] * 50 + [random_ids(40), random_ids(1)]
    targets = [random_ids(1)] * 51 + [random_ids(40)]
    programs = decoder.prepare(variables, sources, targets)
    assert list(programs) == ["forced decoding, 42 x 48 tokens", "forced decoding, 32 x 16 tokens"]
    assert decoder.decode(variables, sources, targets)[0].attention_TS is None
    assert decoder.prepare(variables, sources, targets) == programs
    with pytest.raises(UserError, match=r"this needs attention, and model\.attention is 'none'"):
        decoder.decode(variables, SOURCES, TARGETS, attention=True)
