import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.models import positions as module
from transformer.models.positions import split_segments

positions_from_the_end = jax.jit(module.positions_from_the_end)
segment_positions = jax.jit(module.segment_positions)
sinusoidal_encoding = jax.jit(module.sinusoidal_encoding, static_argnums=1)


def test_interleaved_sine_and_cosine():
    # Frequencies 1 and 10000^(-2/4) = 0.01. Two halves, or Tensor2Tensor's frequencies,
    # would give .841471 .0001 .540302 1 for position 1.
    expected = [
        [0, 1, 0, 1],
        [0.841471, 0.540302, 0.01, 0.99995],
        [0.909297, -0.416147, 0.019999, 0.9998],
    ]
    np.testing.assert_allclose(sinusoidal_encoding(np.arange(3), 4), expected, atol=1e-6)


def test_equation_of_section_3_5():
    d_model, positions = 10, [0, 1, 2, 97, 997]
    found = np.asarray(sinusoidal_encoding(np.array(positions), d_model))
    for row, pos in enumerate(positions):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert found[row, 2 * i] == pytest.approx(math.sin(angle), abs=1e-4)
            assert found[row, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-4)


def test_an_odd_d_model_ends_with_a_sine():
    found = sinusoidal_encoding(np.arange(2), 3)
    expected = [[0, 1, 0], [0.841471, 0.540302, math.sin(10000 ** (-2 / 3))]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_segment_positions_of_every_short_row():
    rows = [
        row
        for row in itertools.product(range(4), repeat=5)
        if (ids := [i for i in row if i]) == sorted(ids)
    ]
    assert len(rows) == 1 + 5 * 3 + 10 * 6 + 10 * 10 + 5 * 15 + 21
    found = segment_positions(np.array(rows))
    assert found.dtype == jnp.int32
    found = np.asarray(found)
    assert found.min() == 0
    assert found.max() == 4
    from_the_end = np.asarray(positions_from_the_end(np.array(rows)))
    for row, positions, backwards in zip(rows, found, from_the_end, strict=True):
        for t, segment in enumerate(row):
            if segment:  # padding may have any position
                assert positions[t] == row[:t].count(segment), row
                assert backwards[t] == row[t + 1 :].count(segment), row


def test_parts_end_with_their_separator():
    """In the middle, twice in a row, at the end, before EOS; the next sentence is a new part."""
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0]])
    tokens = np.array([[5, 7, 5, 5, 2, 5, 5, 2, 9, 2, 0, 0]])
    found = segment_positions(split_segments(segments, tokens, separator=5))
    np.testing.assert_array_equal(found[0, :10], [0, 0, 1, 0, 0, 0, 0, 0, 0, 1])
    assert found.dtype == jnp.int32
