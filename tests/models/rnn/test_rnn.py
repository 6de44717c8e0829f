"""RNN encoder-decoders beside transcriptions of their papers, equation by equation."""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rnn_papers
from small_batches import SENTENCES, packed
from small_configs import sizes_of
from stepwise import stepwise

from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.numerics import DropoutRngs
from transformer.models.rnn.rnn import RNNConfig, training_flops
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

SOURCE, TARGET = 23, 19  # vocabularies
SMALL = {"embedding_size": 5, "hidden_size": 7, "attention_size": 3, "readout_size": 4}
SMALL |= dict.fromkeys(("embedding_dropout", "layer_dropout", "memory_dropout"), 0.0)
SMALL |= {"output_dropout": 0.0}


def preset(name: str, **changes) -> RNNConfig:
    fields = importlib.import_module(f"configs.rnn_{name}").get_config().model.to_dict()
    return RNNConfig(**fields | changes)


PRESETS = {
    "sutskever": preset("sutskever", **SMALL, num_layers=2),
    "bahdanau": preset("bahdanau", **SMALL),
    "luong": preset("luong", **SMALL, num_layers=2),
    # Its readout is as long as an embedding.
    "conditional": preset("conditional", **SMALL | {"readout_size": 5}),
}
# Three models of bentrevett/pytorch-seq2seq, whose counts of parameters are known.
BENTREVETT = dataclasses.replace(
    PRESETS["bahdanau"],
    cell="gru",
    gate_biases=2,
    encoder="forward",
    initial_state="copy",
    readout="concat",
    output_bias=True,
)
NOTEBOOKS = {
    "lstm": dataclasses.replace(
        BENTREVETT,
        cell="lstm",
        num_layers=2,
        attention="none",
        attention_bias=False,
        readout="state",
    ),
    "cho": dataclasses.replace(BENTREVETT, attention="fixed", attention_bias=False),
    "additive": dataclasses.replace(BENTREVETT, encoder="bidirectional", initial_state="both"),
}


def luong(**changes):
    return dataclasses.replace(PRESETS["luong"], **changes)


VARIANTS = {
    **{name: (getattr(rnn_papers, name), config) for name, config in PRESETS.items()},
    "luong dot, local-p": (
        rnn_papers.luong,
        luong(attention="dot", attention_window=2, readout_bias=True),
    ),
    "luong concat without feeding": (
        rnn_papers.luong,
        luong(attention="additive", input_feeding=False),
    ),
    "conditional, deep": (
        rnn_papers.conditional,
        dataclasses.replace(
            PRESETS["conditional"], readout="deep", readout_size=4, share_embeddings="none"
        ),
    ),
    "cho": (rnn_papers.cho, NOTEBOOKS["cho"]),
    "cho, deep": (
        rnn_papers.cho,
        dataclasses.replace(
            NOTEBOOKS["lstm"], attention="fixed", readout="maxout", output_bias=False
        ),
    ),
    "additive, of the notebook": (rnn_papers.bahdanau, NOTEBOOKS["additive"]),
}


@functools.cache
def model_of(config: RNNConfig):
    return build_model(config, sizes_of(SOURCE, TARGET))


def transcription(name, params, source, target_in):
    """Logits of one sentence and the weights alpha, in float64."""
    paper, config = VARIANTS[name]
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    return paper(params, config, [int(x) for x in source], [int(x) for x in target_in])


BATCH = packed(SOURCE, TARGET)
INPUTS = BATCH.src_BS, BATCH.tgt_in_BT, BATCH.src_segments_BS, BATCH.tgt_segments_BT


@pytest.fixture
def params_of(random_params):
    """Parameters with which states reach where tanh is curved and attention chooses."""
    return lambda config: jax.tree.map(lambda x: 3 * np.asarray(x), random_params(model_of(config)))


# --- The papers ---------------------------------------------------------------------------


SRC_BS = np.array([[3, 1, 22, 7, 5, 9], [9, 2, 11, 0, 0, 0]])


# Slow: its parts are those of cho, sutskever and bahdanau.
COMBINED = pytest.param("cho, deep", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [x for x in VARIANTS if x != "cho, deep"] + [COMBINED])
def test_it_is_the_paper(name, params_of):
    """In rows of several sentences, each as if alone and with no weight on a neighbour's words.

    And step by step: two hypotheses for each of two sentences, one of them with padding.
    """
    config = VARIANTS[name][1]
    model, params = model_of(config), params_of(config)
    state_sharding(data_mesh(jax.devices()[:1]), params, model.sharding)  # each has a place
    tokens_NT = np.array([[1, 4, 18], [1, 7, 2], [1, 3, 3], [1, 16, 5]])

    @jax.jit
    def run(params):
        bound = model.bind(params)
        return bound(*INPUTS, return_weights=True), stepwise(bound, SRC_BS, tokens_NT)[0]

    (logits, weights), step_by_step = jax.tree.map(np.asarray, run(params))
    for row, segment in SENTENCES:
        is_src = BATCH.src_segments_BS[row] == segment
        is_tgt = BATCH.tgt_segments_BT[row] == segment
        source, target = BATCH.src_BS[row][is_src], BATCH.tgt_in_BT[row][is_tgt]
        expected, alpha = transcription(name, params, source, target)
        np.testing.assert_allclose(logits[row][is_tgt], expected, atol=2e-5)
        assert np.ptp(expected) > 0.5
        assert (weights is None) == (alpha is None)
        if alpha is not None:
            np.testing.assert_allclose(weights[row][is_tgt][:, is_src], alpha, atol=2e-6)
            assert (weights[row][is_tgt][:, ~is_src] == 0).all()
    sources = SRC_BS[0], SRC_BS[0], SRC_BS[1, :3], SRC_BS[1, :3]
    for found, source, tokens in zip(step_by_step, sources, tokens_NT, strict=True):
        expected, _ = transcription(name, params, source, tokens)
        np.testing.assert_allclose(found, expected, atol=5e-5)


def small_of_256_and_512(config):
    return dataclasses.replace(config, embedding_size=256, hidden_size=512, attention_size=512)


@pytest.mark.parametrize(
    ("config", "vocabularies", "expected"),
    [
        (preset("bahdanau"), (30_000, 30_000), 80_413_000),
        (preset("sutskever"), (160_000, 80_000), 384_000_000),
        # In millions: 3 x 50 for words; 4 x 8 and 12 + 3 x 8 for the cells, where the decoder's
        # first sees three vectors; 1 for W_a; 2 for W_c. No biases.
        (preset("luong"), (50_000, 50_000), 221_000_000),
        (small_of_256_and_512(NOTEBOOKS["lstm"]), (7853, 5893), 13_898_501),
        (small_of_256_and_512(NOTEBOOKS["cho"]), (7853, 5893), 14_219_781),
        (small_of_256_and_512(NOTEBOOKS["additive"]), (7853, 5893), 20_518_405),
    ],
    ids=["bahdanau", "sutskever", "luong", *NOTEBOOKS],
)
def test_numbers_of_parameters(config, vocabularies, expected):
    """Those of the papers' sizes, and those that notebooks 1, 2 and 3 of bentrevett print."""
    assert num_params(build_model(config, sizes_of(*vocabularies)).abstract_params()) == expected


# --- Gradients ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gradient_is_that_of_finite_differences(params_of):
    """And no parameter is without one."""
    model, params = model_of(PRESETS["luong"]), params_of(PRESETS["luong"])
    run = jax.jit(jax.value_and_grad(lambda params: model.bind(params).loss(BATCH, None, 0.1).loss))
    _, gradient = run(params)
    rng = np.random.default_rng(1)
    # Uphill along every parameter, so that no slope hides behind another of opposite sign.
    direction = jax.tree.map(lambda g: jnp.sign(g) * rng.random(g.shape, np.float32), gradient)

    def moved(step):
        return run(jax.tree.map(lambda p, d: p + step * d, params, direction))[0]

    slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))
    np.testing.assert_allclose((moved(1e-3) - moved(-1e-3)) / 2e-3, slope, rtol=5e-3)
    assert slope > 10
    assert all(np.any(x) for x in jax.tree.leaves(gradient))


# --- Dropout ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "place", "zeroed"),
    [
        # Where the weights after it are zero, dropout changes nothing: one place is left.
        ("conditional", "embedding", ("decoder", "cells", 0, "input_IG")),  # so, of the source
        pytest.param(  # of the encoder
            *("sutskever", "layer", ("decoder", "cells", 1, "input_IG")), marks=pytest.mark.slow
        ),
        ("luong", "layer", ("encoder_backward", 1, "input_IG")),  # of the decoder, step by step
        ("luong", "memory", None),
        pytest.param("bahdanau", "output", None, marks=pytest.mark.slow),
    ],
)
def test_each_place_of_dropout_acts_and_follows_the_rows(name, place, zeroed, params_of):
    params = params_of(PRESETS[name])
    if zeroed:
        *path, last = zeroed
        functools.reduce(lambda tree, key: tree[key], path, params)[last] *= 0
    model = model_of(dataclasses.replace(PRESETS[name], **{f"{place}_dropout": 0.4}))

    @jax.jit
    def loss(params, rows):
        rngs = DropoutRngs(jax.random.key(3), rows)
        return model.bind(params).loss(BATCH, rngs, 0.1).loss

    rows = np.arange(3)
    assert loss(params, rows) == loss(params, rows)
    assert abs(loss(params, rows) - loss(params, rows + 1)) > 1e-3


# --- The family ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in VARIANTS if "deep" not in name])
def test_flops_are_those_xla_counts(name, monkeypatch):
    # XLA counts the body of a loop once. Sizes are large, so that products are nearly all there is.
    scan = jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda *x, reverse=False: scan(*x, None, reverse, True))
    sizes = {"embedding_size": 601, "hidden_size": 607, "attention_size": 613}
    sizes["readout_size"] = 601 if name == "conditional" else 599
    config = dataclasses.replace(VARIANTS[name][1], **sizes)
    model, T = build_model(config, sizes_of(1009)), 2
    ones = np.ones((T, T), np.int32)
    step = jax.jit(lambda params: model.bind(params)(ones, ones))
    counted = step.lower(model.abstract_params()).cost_analysis()["flops"]
    ours = training_flops(config, sizes_of(1009), np.full(T, T), np.full(T, T)).sum() / 3
    # In a packed row, each target position finds its sentence's summary and makes a first state.
    ours += 2 * T * T * T * config.summary_size
    if config.initial_state != "copy":
        ours += 2 * T * (T - 1) * config.summary_size * config.hidden_size
    # In the loop of "maxout", nobody reads the last state: newer JAX leaves it out.
    last = 2 * T * 3 * 607 * (2 * 607 + 607) if name == "bahdanau" else 0
    assert ours - last < counted < 1.003 * ours


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bahdanau", {"hidden_size": 0}, r"hidden_size is 0; it must be at least 1"),
        ("bahdanau", {"gate_biases": 3}, "gate_biases is 3; it must be at least 0 and below 3"),
        ("bahdanau", {"memory_dropout": 1.0}, r"memory_dropout is 1\.0"),
        ("bahdanau", {"cell": "rnn"}, r"cell is 'rnn'; it must be one of: gated_unit, gru, lstm"),
        ("bahdanau", {"dtype": "float64"}, r"dtype is 'float64', which JAX has only with"),
        ("bahdanau", {"initial_state": "copy"}, r"initial_state is 'copy' and model\.encoder 'bi"),
        ("luong", {"initial_state": "both"}, r"initial_state is 'both' and model\.encoder 'rev"),
        ("bahdanau", {"attention": "none"}, r"attention is 'none', but .*'maxout' needs a context"),
        ("luong", {"attention": "none", "readout": "tanh"}, r"attention is 'none', but model\.in"),
        ("bahdanau", {"attention": "dot"}, r"attention is 'dot', which needs annotations of the"),
        ("luong", {"attend": "previous"}, r"input_feeding needs model\.attend = 'current' and"),
        ("luong", {"readout": "concat"}, r"input_feeding needs model\.attend = 'current' and"),
        ("conditional", {"num_layers": 2}, r"attend is 'between', which needs model\.num_layers"),
        ("conditional", {"attention": "none"}, r"attend is 'between', which needs model\.num_l"),
        ("cho", {"attend": "current"}, r"attention is 'fixed', which needs model\.attend = 'prev"),
        ("bahdanau", {"attention": "fixed"}, r"attention is 'fixed' and .*: nothing reads the enc"),
        (
            "bahdanau",
            {"attention": "none", "readout": "state"},
            r"attention is 'none' and .*: nothing reads the encoder's other direction",
        ),
        (
            "bahdanau",
            {"attend": "current", "readout": "tanh"},
            r"attend is 'current', but model\.readout = 'tanh' does not see the context",
        ),
        ("sutskever", {"attention_window": 1}, r"attention_window is 1, but there is no att"),
        ("sutskever", {"attention_bias": True}, r"attention_bias is True, but there is no att"),
        ("cho", {"attention_bias": True}, r"attention_bias is True, but there is no attention"),
        ("luong", {"attention_bias": True}, r"attention_bias is True, and model\.attention 'gen"),
        ("sutskever", {"memory_dropout": 0.5}, r"memory_dropout is 0\.5, but nothing reads the"),
        ("cho", {"memory_dropout": 0.5}, r"memory_dropout is 0\.5, but nothing reads the annot"),
        ("bahdanau", {"layer_dropout": 0.2}, r"layer_dropout is 0\.2, but there is one layer"),
        ("bahdanau", {"share_embeddings": "all"}, r"share_embeddings is 'all', which needs a rea"),
    ],
)
def test_settings_that_cannot_be(name, changes, message):
    with pytest.raises(UserError, match=rf"^model\.{message}"):
        dataclasses.replace(VARIANTS[name][1], **changes)


def test_one_table_for_two_vocabularies_is_refused():
    config = dataclasses.replace(PRESETS["conditional"], share_embeddings="all")
    message = r"^model\.share_embeddings is 'all', but the source and target vocabularies differ"
    with pytest.raises(UserError, match=message):
        build_model(config, sizes_of(SOURCE, TARGET))
    params = build_model(config, sizes_of(TARGET)).abstract_params()
    assert "source_embedding_VE" not in params
