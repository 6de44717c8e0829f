"""Who sees whom, on literal tables; the attentions of T-DMCA against loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_decoder_only import CONFIG

from transformer.models import attention
from transformer.models.decoder_only.long_attention import KINDS, Rows
from transformer.models.positions import segment_positions

# x_0, then the blocks 0 to 2, 3 to 5: a block is seen from the token after it on.
COMPRESSED = ["100", "100", "100", "110", "110", "110", "111", "111"]
# Blocks of 3.
LOCAL = {
    "paper": """
        10000000 11000000 11100000 00010000 00011000 00011100 00000010 00000011""",
    "tensor2tensor": """
        10000000 11000000 11100000 11110000 11111000 11111100 00011110 00011111""",
}


def layer(kind, seed=0, **changes):
    config = dataclasses.replace(CONFIG, d_model=8, **changes)
    return KINDS[kind](config, nnx.Rngs(seed))


def rows_of(*lengths: int) -> Rows:
    segments = np.array([np.repeat(np.arange(1, 1 + len(lengths)), lengths)])
    return Rows(segments, jax.jit(segment_positions)(segments))


def seen(module, rows, x_1XD) -> np.ndarray:
    """Which of the inputs each output depends on, [X, X]."""
    weights_D = np.arange(x_1XD.shape[2])
    jacobian = jax.jacobian(lambda x: module.forward(x, rows, None)[0][0] @ weights_D)
    jacobian = np.asarray(jax.jit(jacobian)(x_1XD))
    return np.abs(jacobian[:, 0]).sum(axis=-1) > 1e-9


def forward(module, x_BXD, rows):
    run = jax.jit(lambda x_BXD, rows: module.forward(x_BXD, rows, None)[0])
    return np.asarray(run(x_BXD, rows))


def inputs(X, seed=0):
    return np.random.default_rng(seed).normal(size=(1, X, 8)).astype(np.float32)


@pytest.mark.parametrize("form", LOCAL)
def test_local_attention_sees(form):
    module = layer("L", block_length=3, local_attention=form)
    found = seen(module, rows_of(8), inputs(8))
    assert ["".join(map(str, row)) for row in found.astype(int)] == LOCAL[form].split()


@pytest.mark.parametrize("form", ["paper", "tensor2tensor"])
def test_compressed_attention_sees(form):
    """Of a block either all of its three tokens, or none; and itself in the query alone."""
    module = layer("M", compressed_attention=form)
    found = seen(module, rows_of(8), inputs(8))
    for i, columns in enumerate(COMPRESSED):
        expected = {0, i} | {3 * b + k for b in (0, 1) if columns[1 + b] == "1" for k in range(3)}
        if i < 3:  # x_0 alone, whatever the query: the softmax of one is 1
            expected = {0}
        assert set(np.flatnonzero(found[i])) == expected, i


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("L", {"block_length": 4, "local_attention": "tensor2tensor"}),
        ("M", {"compressed_attention": "tensor2tensor"}),
    ],
)
def test_sequences_of_a_row_do_not_see_each_other(kind, changes):
    """Of the paper's forms, see the loss of packed rows in test_decoder_only.py."""
    module, x = layer(kind, **changes), inputs(21)
    single = jax.tree.map(lambda x: np.repeat(x, 3, axis=0), rows_of(7))

    @jax.jit
    def both(x):
        alone = module.forward(x.reshape(3, 7, 8), single, None)[0]
        return module.forward(x, rows_of(7, 7, 7), None)[0], alone.reshape(x.shape)

    np.testing.assert_allclose(*both(x), rtol=1e-4, atol=1e-6)


def test_compressed_attention_by_hand():
    """The paper's: a convolution of keys and of values, with a bias, then Equation 1."""
    module, x = layer("M", num_heads=1), inputs(7)
    rng = np.random.default_rng(1)
    for convolution in (module.compress_key, module.compress_value):
        convolution.bias[...] = jnp.asarray(rng.normal(size=8), jnp.float32)
    found = forward(module, x, rows_of(7))
    q, k, v = (x[0] @ np.asarray(p.kernel[...]) for p in (module.query, module.key, module.value))
    output = np.asarray(module.output.kernel[...])
    for i in range(7):
        keys, values = [k[0]], [v[0]]
        for b in range(i // 3):
            for side, whole, convolution in (
                (keys, k, module.compress_key),
                (values, v, module.compress_value),
            ):
                taps = np.asarray(convolution.kernel[...]).reshape(3, 8, 8)
                made = sum(whole[3 * b + tap] @ taps[tap] for tap in range(3))
                side.append(made + np.asarray(convolution.bias[...]))
        weights = np.exp(np.array(keys) @ q[i] / np.sqrt(8))
        expected = (weights / weights.sum()) @ np.array(values) @ output
        np.testing.assert_allclose(found[0, i], expected, rtol=1e-4, atol=1e-5)


def test_long_rows_in_blocks_are_the_same(monkeypatch):
    module, x = layer("M"), inputs(20)
    whole = forward(module, x, rows_of(13, 7))
    monkeypatch.setattr(attention, "MAX_QUERIES", 6)
    blocks = forward(module, x, rows_of(13, 7))
    np.testing.assert_allclose(whole, blocks, rtol=1e-4, atol=1e-6)
