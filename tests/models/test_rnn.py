"""The RNN with attention beside a transcription of its paper, equation by equation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_configs import sizes_of

from transformer.data.batches import Batch
from transformer.decoding.search import beam_search
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.loss import cross_entropy
from transformer.models.numerics import DropoutRngs
from transformer.models.rnn import Alignment, Memory, RNNConfig, training_flops
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

SOURCE, TARGET = 23, 19  # vocabularies
CONFIG = RNNConfig(
    family="rnn",
    embedding_size=5,
    hidden_size=7,
    attention_size=3,
    maxout_size=2,
    dropout=0.0,
    initialization="glorot",
    dtype="float32",
)


def rnn(**changes):
    return build_model(dataclasses.replace(CONFIG, **changes), sizes_of(SOURCE, TARGET))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


# --- The paper ----------------------------------------------------------------------------


def unit(p, word, state, context=0.0):
    """Appendix A.1.1 and A.2.2: one step of a gated hidden unit. context: [C_z c, C_r c, C c]."""
    n = len(state)
    from_word = word @ p["input_EG"] + p["bias_G"] + context
    from_state = state @ p["gates_HX"]
    z = sigmoid(from_word[:n] + from_state[:n])
    r = sigmoid(from_word[n : 2 * n] + from_state[n:])
    proposal = np.tanh(from_word[2 * n :] + (r * state) @ p["candidate_HH"])
    return (1 - z) * state + z * proposal


def transcription(params, source: list[int], target_in: list[int]):
    """Logits of one sentence and the weights alpha, in float64, from the equations."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    n = len(p["initial_bias_H"])
    words = p["source_embedding_VE"][source]
    # A.2.1: the annotations.
    forward, backward = np.zeros((2, len(source) + 1, n))
    for j in range(len(source)):
        forward[j + 1] = unit(p["encoder_forward"], words[j], forward[j])
    for j in reversed(range(len(source))):
        backward[j] = unit(p["encoder_backward"], words[j], backward[j + 1])
    h = np.concatenate([forward[1:], backward[:-1]], axis=1)
    # A.2.2: the decoder.
    s = np.tanh(backward[0] @ p["initial_HH"] + p["initial_bias_H"])
    a = p["alignment"]
    logits, weights = [], []
    for token in target_in:
        y = p["target_embedding_VE"][token]
        e = [
            np.tanh(s @ a["query_HK"] + h_j @ a["key_UK"] + a["key_bias_K"]) @ a["energy_K"]
            for h_j in h
        ]
        alpha = softmax(np.array(e))
        c = alpha @ h
        t = s @ p["readout_state_HO"] + y @ p["readout_word_EO"] + c @ p["readout_context_UO"]
        t += p["readout_bias_O"]
        t = np.maximum(t[: len(t) // 2], t[len(t) // 2 :])
        logits.append(p["output_VD"] @ t)
        weights.append(alpha)
        s = unit(p["decoder"], y, s, c @ p["context_UG"])
    return np.array(logits), np.array(weights)


SRC, TGT = [3, 1, 22, 7, 5], [1, 4, 18, 2]


def test_it_is_the_paper(random_params):
    model = rnn()
    params = random_params(model)
    found = jax.jit(
        lambda params: model.bind(params)(
            jnp.array([[*SRC, 0, 0]]), jnp.array([[*TGT, 0]]), return_weights=True
        )
    )(params)
    logits, weights = transcription(params, SRC, TGT)
    np.testing.assert_allclose(found[0][0, :4], logits, atol=1e-5)
    np.testing.assert_allclose(found[1][0, :4, :5], weights, atol=1e-6)
    assert (found[1][0, :4, 5:] == 0).all()  # padding
    assert np.ptp(logits) > 0.1


def test_additive_attention_by_hand():
    """With W = U = I, v = (1, 1), s = 0 and annotations (1, 0), (0, 2)."""
    config = dataclasses.replace(CONFIG, hidden_size=1, attention_size=2)
    alignment = Alignment(config, nnx.Rngs(0))
    alignment.query_HK[...] = jnp.ones((1, 2))
    alignment.key_UK[...] = jnp.eye(2)
    alignment.energy_K[...] = jnp.ones(2)
    annotations = jnp.array([[[1.0, 0.0], [0.0, 2.0]]])
    memory = Memory(annotations, alignment.keys(annotations), None)
    context, weights = alignment(jnp.zeros((1, 1, 1)), memory, jnp.ones((1, 1, 2), bool))
    np.testing.assert_allclose(weights[0, 0], [0.449564, 0.550436], atol=1e-6)
    np.testing.assert_allclose(context[0, 0], [0.449564, 1.100873], atol=1e-6)


def test_the_papers_start_is_uniform_attention():
    model = rnn(initialization="paper")
    params = model.init(jax.random.key(0))
    _, weights = model.bind(params)(jnp.array([SRC]), jnp.array([TGT]), return_weights=True)
    np.testing.assert_allclose(weights, 0.2, atol=1e-6)
    np.testing.assert_allclose(
        params["decoder"]["candidate_HH"].T @ params["decoder"]["candidate_HH"],
        np.eye(7),
        atol=1e-5,
    )


def test_parameters_of_the_paper():
    """n = n' = 1000, m = 620, l = 500 and 30,000 words on either side."""
    config = dataclasses.replace(
        CONFIG, embedding_size=620, hidden_size=1000, attention_size=1000, maxout_size=500
    )
    n, m, words = 1000, 620, 30_000
    gates = 3 * (m * n + n * n + n)
    expected = 2 * words * m + words * 500  # embeddings, W_o
    expected += 3 * gates + 3 * 2 * n * n  # two directions and the decoder, with C, C_z, C_r
    expected += n * n + 2 * n * n + n + n  # W_a, U_a with bias, v_a
    expected += n * n + n  # W_s
    expected += 1000 * (n + m + 2 * n) + 1000  # U_o, V_o, C_o of 2 l
    model = build_model(config, sizes_of(words))
    assert num_params(model.abstract_params()) == expected == 80_413_000


# --- Rows and batches ---------------------------------------------------------------------


def packed_batch():
    """Two rows of several sentences with padding at the end, and one row of padding."""
    rng = np.random.default_rng(5)
    src_segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 0, 0], [0] * 8])
    tgt_segments = np.array([[1, 1, 2, 2, 2, 0, 0], [1, 2, 2, 2, 3, 3, 0], [0] * 7])
    src = rng.integers(1, SOURCE, src_segments.shape) * (src_segments > 0)
    tgt_in, tgt_out = rng.integers(1, TARGET, (2, *tgt_segments.shape)) * (tgt_segments > 0)
    return Batch(*map(jnp.asarray, (src, src_segments, tgt_in, tgt_out, tgt_segments)))


def test_packed_is_unpacked(random_params):
    model, batch = rnn(), packed_batch()
    params = random_params(model)
    logits, weights = jax.jit(
        lambda params: model.bind(params)(
            batch.src_BS,
            batch.tgt_in_BT,
            batch.src_segments_BS,
            batch.tgt_segments_BT,
            return_weights=True,
        )
    )(params)
    for row, segment in ((0, 1), (0, 2), (1, 1), (1, 2), (1, 3)):
        is_src = np.asarray(batch.src_segments_BS[row] == segment)
        is_tgt = np.asarray(batch.tgt_segments_BT[row] == segment)
        source, target = batch.src_BS[row][is_src], batch.tgt_in_BT[row][is_tgt]
        expected, alpha = transcription(params, source.tolist(), target.tolist())
        np.testing.assert_allclose(logits[row][is_tgt], expected, atol=1e-5)
        np.testing.assert_allclose(weights[row][is_tgt][:, is_src], alpha, atol=1e-6)
        assert (weights[row][is_tgt][:, ~is_src] == 0).all()


def test_a_neighbour_has_no_gradient(random_params):
    """The loss of one sentence does not move with the words of another of its row."""
    model, batch = rnn(), packed_batch()

    def loss(params):
        logits = model.bind(params)(
            batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
        )
        only = (batch.tgt_segments_BT == 2) & jnp.array([[True], [False], [False]])
        return cross_entropy(logits, batch.tgt_out_BT, only, 0.0).loss

    gradient = jax.jit(jax.grad(loss))(random_params(model))["source_embedding_VE"]
    moved = {int(i) for i in np.flatnonzero(np.abs(gradient).sum(axis=1))}
    own = {int(i) for i in batch.src_BS[0][batch.src_segments_BS[0] == 2]}
    assert moved == own
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_the_gradient_is_that_of_finite_differences(random_params):
    model, batch = rnn(), packed_batch()
    params = random_params(model)
    loss = jax.jit(lambda params: model.bind(params).loss(batch, None, 0.1).loss)
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)

    def moved(step):
        return float(loss(jax.tree.map(lambda p, d: p + step * d, params, direction)))

    slope = sum(
        jnp.vdot(g, d)
        for g, d in zip(*map(jax.tree.leaves, (jax.grad(loss)(params), direction)), strict=True)
    )
    np.testing.assert_allclose((moved(1e-3) - moved(-1e-3)) / 2e-3, slope, rtol=5e-3)
    assert abs(slope) > 0.1


def test_dropout_follows_the_rows(random_params):
    model, batch = rnn(dropout=0.4), packed_batch()
    params = random_params(model)
    loss = jax.jit(
        lambda rows: model.bind(params).loss(batch, DropoutRngs(jax.random.key(3), rows), 0.0).loss
    )
    rows = jnp.arange(3)
    assert loss(rows) == loss(rows) != loss(rows + 1)
    assert loss(rows) != model.bind(params).loss(batch, None, 0.0).loss


# --- Decoding -----------------------------------------------------------------------------


def test_step_by_step_is_all_at_once(random_params):
    model, M = rnn(), 2
    params = random_params(model)
    src = jnp.array([[*SRC, 0], [9, 2, 0, 0, 0, 0]])
    tokens_NT = jnp.array([[1, 4, 18], [1, 7, 2], [1, 3, 3], [1, 16, 5]])

    @jax.jit
    def stepwise(params):
        bound = model.bind(params)
        cache = bound.init_cache(bound.encode(src), src, M, 3)
        logits = []
        for t in range(3):
            found, cache = bound.decode_step(tokens_NT[:, t], cache)
            logits.append(found)
        return jnp.stack(logits, axis=1)

    whole = jax.jit(lambda params: model.bind(params)(jnp.repeat(src, M, axis=0), tokens_NT))
    np.testing.assert_allclose(stepwise(params), whole(params), atol=1e-5)


def test_a_searched_score_is_the_score_of_its_words(random_params):
    model = rnn()
    params, src = random_params(model), jnp.array([SRC])

    @jax.jit
    def search(params):
        bound = model.bind(params)
        cache = bound.init_cache(bound.encode(src), src, 3, 6)
        lengths = jnp.array([6])
        return beam_search(bound.decode_step, cache, lengths, beam_size=3, alpha=0.6, longest=6)

    found = search(params)
    tokens = found.tokens_BML[0, 0]
    length = int((tokens != 0).sum())
    tgt_in = jnp.concatenate([jnp.array([1]), tokens[: length - 1]])
    logits, _ = transcription(params, SRC, tgt_in.tolist())
    expected = sum(np.log(softmax(x))[t] for x, t in zip(logits, tokens[:length].tolist()))
    np.testing.assert_allclose(found.log_probs_BM[0, 0], expected, rtol=1e-4)


# --- The family ---------------------------------------------------------------------------


def test_every_parameter_has_a_place_on_a_mesh():
    model = rnn()
    params = model.abstract_params()
    shardings = state_sharding(data_mesh(jax.devices()[:1]), params, model.sharding)
    assert len(jax.tree.leaves(shardings)) == len(jax.tree.leaves(params)) == 26


def test_flops_are_those_xla_counts(monkeypatch):
    # XLA counts the body of a loop once.
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x, reverse=False: scan(*x, None, reverse, True))
    config = dataclasses.replace(
        CONFIG, embedding_size=61, hidden_size=67, attention_size=59, maxout_size=53
    )
    model = build_model(config, sizes_of(211))
    ones = jnp.ones((5, 5), jnp.int32)
    step = jax.jit(lambda params: model.bind(params)(ones, ones))
    counted = step.lower(model.abstract_params()).compile().cost_analysis()["flops"]
    ours = training_flops(config, sizes_of(211), np.full(5, 5), np.full(5, 5)).sum() / 3
    assert 0.98 * ours < counted < 1.1 * ours


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, r"model\.hidden_size is 0; it must be at least 1"),
        ({"initialization": "x"}, r"model\.initialization is 'x'; it must be one of: paper"),
        ({"dropout": 1.0}, r"model\.dropout is 1\.0"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
