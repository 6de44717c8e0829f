"""The lecture's numbers, from the functions of the model."""

import numpy as np

from transformer.reports.toy_numbers import (
    causal_softmax,
    layer_norm,
    small_attention,
    smoothed_loss,
)


def test_they_are_what_one_finds_by_hand():
    np.testing.assert_allclose(layer_norm((1, 3, 5)), [-1.2247, 0, 1.2247], atol=5e-5)
    weights = causal_softmax((1, 2, 3, 4))
    np.testing.assert_allclose(weights[1], [0.26894, 0.73106, 0, 0], atol=5e-6)
    assert (np.triu(weights, 1) == 0).all()
    scores, weights, results = small_attention()
    assert scores.tolist() == [[1, 0, 1], [0, 4, 0], [1, 2, 1]]
    e = np.exp(scores)
    np.testing.assert_allclose(weights, e / e.sum(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(results, weights @ [[1, 0], [0, 1], [5, 5]], rtol=1e-6)
    z = np.log(np.exp([2, 1, 0, 0, 0]).sum())
    np.testing.assert_allclose(smoothed_loss((2, 1, 0, 0, 0), 0, 0.0), z - 2, rtol=1e-6)
    smoothed = 0.92 * (z - 2) + 0.02 * (z - 1) + 0.06 * z
    np.testing.assert_allclose(smoothed_loss((2, 1, 0, 0, 0), 0, 0.1), smoothed, rtol=1e-6)
