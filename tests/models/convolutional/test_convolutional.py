"""ConvS2S beside a transcription of its paper, block by block."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_batches import SENTENCES, packed
from small_configs import sizes_of
from stepwise import stepwise

from configs import convs2s_iwslt, convs2s_wmt
from transformer.models.convolutional.convolutional import scale_gradient
from transformer.models.convolutional.convolutional_blocks import (
    Block,
    ConvolutionalBlock,
    ConvolutionalConfig,
    NormalizedLinear,
)
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.numerics import DropoutRngs
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

SOURCE, TARGET = 23, 19  # vocabularies
IWSLT = ConvolutionalConfig(**convs2s_iwslt.get_model().to_dict())
# Channels that change, so that residual connections need a projection.
CONFIG = dataclasses.replace(
    IWSLT,
    embedding_size=5,
    encoder_blocks="4x3x2 6x5x1",
    decoder_blocks="4x3x1 7x2x1",
    output_size=3,
    max_positions=6,
    dropout=0.0,
)
SHARED = {"decoder_blocks": "4x3x2", "share_attention": True, "weight_normalization": False}
variants = pytest.mark.parametrize("changes", [{}, SHARED], ids=["normalized", "shared"])


def convolutional(**changes):
    return build_model(dataclasses.replace(CONFIG, **changes), sizes_of(SOURCE, TARGET))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


# --- The paper ----------------------------------------------------------------------------


def linear(p, x):
    w = p["direction_XO"]
    if "length_O" in p:
        w = np.stack([g * v / np.sqrt(v @ v) for g, v in zip(p["length_O"], w.T)], axis=1)
    return x @ w + p["bias_O"]


def block(p, width, x, before, attend=None):
    """(GLU(conv(x)), with attention, + x) sqrt(0.5)."""
    rows = []
    for t in range(len(x)):
        window = [
            x[t + tap - before] if 0 <= t + tap - before < len(x) else np.zeros(x.shape[1])
            for tap in range(width)
        ]
        ab = linear(p["convolution"], np.concatenate(window))
        half = len(ab) // 2
        rows.append(ab[:half] / (1 + np.exp(-ab[half:])))
    y = np.array(rows)
    if attend:
        y = attend(y)
    return (y + (linear(p["residual"], x) if "residual" in p else x)) * np.sqrt(0.5)


def transcription(params, config, source: list[int], target_in: list[int]):
    """Logits of one sentence and the weights of each block's attention, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def embed(side, tokens):
        places = [min(i, config.max_positions - 1) for i in range(len(tokens))]
        return side["embedding_VE"][tokens] + side["positions_PE"][places]

    e = embed(p["encoder"], source)
    z = linear(p["encoder"]["input"], e)
    for i, (_, width) in enumerate(config.encoder):
        z = block(p["encoder"]["blocks"][i], width, z, width // 2)
    z = linear(p["encoder"]["output"], z)
    values = (z + e) * np.sqrt(0.5)

    g = embed(p["decoder"], target_in)
    y, weights = linear(p["decoder"]["input"], g), []
    for i, (_, width) in enumerate(config.decoder):
        attention = p["attentions"][0 if config.share_attention else i]

        def attend(h, attention=attention):
            d = (linear(attention["query"], h) + g) * np.sqrt(0.5)
            alpha = np.array([softmax(z @ d_i) for d_i in d])
            weights.append(alpha)
            context = alpha @ values * np.sqrt(len(source))
            return (linear(attention["output"], context) + h) * np.sqrt(0.5)

        y = block(p["decoder"]["blocks"][i], width, y, width - 1, attend)
    return linear(p["logits"], linear(p["decoder"]["output"], y)), weights


SRC = [3, 1, 22, 7, 5, 9, 2]  # longer than the positions


def test_the_residual_connection_has_no_dropout():
    config = dataclasses.replace(CONFIG, weight_normalization=False, dropout=0.5)
    block = ConvolutionalBlock(3, Block(3, 1), config, False, nnx.Rngs(0))
    block.convolution.direction_XO[...] *= 0
    rngs = DropoutRngs(jax.random.key(0), jnp.arange(2))
    run = jax.jit(lambda x: block(x, np.ones((2, 5), int), rngs))
    np.testing.assert_allclose(run(np.ones((2, 5, 3), np.float32)), 0.5**0.5, rtol=1e-6)


def test_parameters_of_fairseq():
    """fconv_iwslt_de_en with any vocabularies; a notebook's model with an attention for all."""
    iwslt = build_model(IWSLT, sizes_of(101, 203))
    assert num_params(iwslt.abstract_params()) == 3_944_448 + 256 * 101 + 514 * 203
    # github.com/bentrevett/pytorch-seq2seq, the convolutional model.
    ten = dataclasses.replace(
        IWSLT,
        encoder_blocks="512x3x10",
        decoder_blocks="512x3x10",
        max_positions=100,
        weight_normalization=False,
        share_attention=True,
    )
    model = build_model(ten, sizes_of(7853, 5893))
    assert num_params(model.abstract_params()) == 37_351_173
    wmt = ConvolutionalConfig(**convs2s_wmt.get_config().model.to_dict())
    assert wmt.encoder == wmt.decoder == [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2
    fewer = "512x3x2 1024x3x2 2048x1x2"
    wmt = dataclasses.replace(wmt, encoder_blocks=fewer, decoder_blocks=fewer)

    def linear(d_in, d_out):  # and a bias and a length for each output
        return (d_in + 2) * d_out

    blocks = 2 * linear(3 * 512, 1024) + linear(3 * 512, 2048) + linear(3 * 1024, 2048)
    blocks += linear(1024, 4096) + linear(2048, 4096)
    residuals = linear(512, 1024) + linear(1024, 2048)
    side = 1024 * 768 + linear(768, 512) + blocks + residuals
    attentions = sum(
        n * (linear(size, 768) + linear(768, size)) for n, size in ((2, 512), (2, 1024), (2, 2048))
    )
    expected = 2 * side + linear(2048, 768) + linear(2048, 512) + attentions
    expected += 768 * (101 + 203) + linear(512, 203)
    assert num_params(build_model(wmt, sizes_of(101, 203)).abstract_params()) == expected


def test_initial_values(monkeypatch):
    """Section 3.5. p is the dropout in front; none is before projections."""
    monkeypatch.setattr(jax.random, "normal", lambda key, shape, dtype: np.ones(shape, dtype))
    blocks = {"encoder_blocks": "256x3x2 512x3x1", "decoder_blocks": "256x3x1"}
    config = dataclasses.replace(IWSLT, dropout=0.2, weight_normalization=False, **blocks)
    params = build_model(config, sizes_of(101)).init(jax.random.key(0))
    assert np.all(params["encoder"]["embedding_VE"] == np.float32(0.1))
    assert np.all(params["decoder"]["positions_PE"] == np.float32(0.1))
    for part, expected in (
        (params["encoder"]["input"], (0.8 / 256) ** 0.5),
        (params["encoder"]["blocks"][1]["convolution"], (4 * 0.8 / (3 * 256)) ** 0.5),
        (params["encoder"]["blocks"][2]["residual"], (1 / 256) ** 0.5),
        (params["encoder"]["output"], (1 / 512) ** 0.5),
        (params["attentions"][0]["query"], (1 / 256) ** 0.5),
        (params["attentions"][0]["output"], (1 / 256) ** 0.5),
        (params["logits"], (0.8 / 256) ** 0.5),
    ):
        np.testing.assert_allclose(part["direction_XO"], expected, rtol=1e-6)
        assert not part["bias_O"].any()


def test_weight_normalization():
    """At first W = v. The length of v does not matter, and g is that of each output's weights."""
    linear = NormalizedLinear(5, 3, 0.7, CONFIG, nnx.Rngs(0))
    np.testing.assert_allclose(linear.kernel(), linear.direction_XO[...], rtol=1e-6)
    linear.direction_XO[...] *= jnp.array([[2.0, 0.5, 7.0]])
    linear.length_O[...] = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(jnp.linalg.norm(linear.kernel(), axis=0), [1, 2, 3], rtol=1e-6)


# --- Rows and batches ---------------------------------------------------------------------


@variants
def test_it_is_the_paper_in_packed_rows(changes, random_params):
    """And so a sentence's logits do not depend on the length of its batch."""
    model, batch = convolutional(**changes), packed(SOURCE, TARGET)
    params, config = random_params(model), dataclasses.replace(CONFIG, **changes)
    state_sharding(data_mesh(jax.devices()[:1]), params, model.sharding)  # each has a place
    inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
    run = jax.jit(lambda params: model.bind(params)(*inputs, return_weights=True))
    found, weights = jax.tree.map(np.asarray, run(params))
    for row, segment in SENTENCES:
        is_source, is_target = (x[row] == segment for x in inputs[2:])
        source, target = batch.src_BS[row][is_source], batch.tgt_in_BT[row][is_target]
        expected, alphas = transcription(params, config, source.tolist(), target.tolist())
        np.testing.assert_allclose(found[row][is_target], expected, rtol=1e-4, atol=1e-4)
        assert np.ptp(expected) > 0.1
        for weights_BTS, alpha in zip(weights, alphas, strict=True):
            weights_TS = weights_BTS[row][is_target]
            np.testing.assert_allclose(weights_TS[:, is_source], alpha, atol=1e-5)
            assert (weights_TS[:, ~is_source] == 0).all()


def test_the_gradient_is_that_of_finite_differences(random_params, monkeypatch):
    """Where nothing scales it: the forward pass knows nothing of that."""
    monkeypatch.setattr(
        "transformer.models.convolutional.convolutional.scale_gradient", lambda x, factor: x
    )
    model, batch = convolutional(), packed(SOURCE, TARGET)
    params = random_params(model)
    params = jax.tree.map(np.asarray, params)
    run = jax.jit(jax.value_and_grad(lambda params: model.bind(params).loss(batch, None, 0.1).loss))
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), params)

    def moved(step):
        step = np.float32(step)
        return float(run(jax.tree.map(lambda p, d: p + step * d, params, direction))[0])

    slope = sum(jax.tree.leaves(jax.tree.map(np.vdot, run(params)[1], direction)))
    np.testing.assert_allclose((moved(1e-3) - moved(-1e-3)) / 2e-3, slope, rtol=1e-2)
    assert abs(slope) > 0.1


@pytest.mark.slow
def test_the_encoders_gradient_is_scaled(random_params, monkeypatch):
    """By 1 / (2 times two blocks that attend); the embeddings' own way into the values is not."""
    assert jax.grad(lambda x: 3 * scale_gradient(x, 0.25))(1.0) == 0.75
    batch = packed(SOURCE, TARGET)

    def gradient():
        model = convolutional()
        params = random_params(model)
        loss = jax.jit(jax.grad(lambda params: model.bind(params).loss(batch, None, 0.0).loss))
        return loss(params)

    scaled = gradient()
    monkeypatch.setattr(
        "transformer.models.convolutional.convolutional.scale_gradient", lambda x, factor: x
    )
    plain = gradient()
    for name in ("output", "input", "blocks"):
        for a, b in zip(*(jax.tree.leaves(x["encoder"][name]) for x in (scaled, plain))):
            np.testing.assert_allclose(a, b / 4, rtol=1e-4, atol=1e-6)
    a, b = (x["encoder"]["embedding_VE"] for x in (scaled, plain))
    assert np.abs(a - b / 4).max() > 1e-3
    jax.tree.map(  # two programs: the compiler may add up the same numbers in another order
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-9),
        scaled["decoder"],
        plain["decoder"],
    )


@pytest.mark.slow
def test_places_of_dropout(random_params, monkeypatch):
    """Embeddings, the input of each block, and what the softmax layer sees."""
    sizes = []

    def recorded(x, rate, rngs):
        sizes.append(x.shape[-1])
        return x

    for module in ("convolutional", "convolutional_blocks"):
        monkeypatch.setattr(f"transformer.models.convolutional.{module}.dropout", recorded)
    model, batch = convolutional(), packed(SOURCE, TARGET)
    jax.clear_caches()  # parts traced by other tests would not be recorded
    jax.eval_shape(lambda params: model.bind(params).loss(batch, None, 0.0), random_params(model))
    assert sizes == [5, 4, 4, 4, 5, 4, 4, 3]


# --- Decoding -----------------------------------------------------------------------------


@variants
def test_step_by_step_is_the_paper(changes, random_params):
    """With a cache whose size does not depend on the length."""
    model, config = convolutional(**changes), dataclasses.replace(CONFIG, **changes)
    params = random_params(model)
    src = np.array([[*SRC, 0], [9, 2, 0, 0, 0, 0, 0, 0]])
    tokens_NT = np.random.default_rng(2).integers(1, TARGET, (4, 8))
    run = jax.jit(lambda p: stepwise(model.bind(p), src, tokens_NT))
    logits_NTV, cache = jax.tree.map(np.asarray, run(params))
    assert all(x.shape[1] <= 2 for x in jax.tree.leaves(cache["hypothesis"]))
    for n, (found_TV, tokens) in enumerate(zip(logits_NTV, tokens_NT, strict=True)):
        source = [word for word in src[n // 2].tolist() if word]
        logits, _ = transcription(params, config, source, tokens.tolist())
        np.testing.assert_allclose(found_TV, logits, rtol=1e-4, atol=1e-4)


# --- The config ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_blocks": "4x3"}, r"model\.encoder_blocks is '4x3'; it must be groups such as"),
        ({"encoder_blocks": "4x2x1"}, r"model\.encoder_blocks has the width 2; the encoder needs"),
        ({"share_attention": True}, r"model\.share_attention is True, which needs as many"),
        ({"max_positions": 0}, r"model\.max_positions is 0; it must be at least 1"),
        ({"dropout": 1.0}, r"model\.dropout is 1\.0"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)
