import numpy as np
import pytest

from transformer.models.functional import FunctionalModel
from transformer.models.sagan.conditional_norm import ConditionalNorm


@pytest.fixture(scope="module")
def norm():
    return FunctionalModel(lambda rngs: ConditionalNorm(3, 2))


def test_statistics_of_the_batch_and_stored_ones(norm):
    params = norm.init(0) | {
        "scale_NC": np.array([[1.0, 1.0], [2.0, 3.0], [0.0, 1.0]], np.float32),
        "shift_NC": np.array([[0.0, 0.0], [5.0, -1.0], [7.0, 0.0]], np.float32),
    }
    bound = norm.bind(params, norm.init_extra(0))
    x = np.random.default_rng(0).normal(3, 2, (5, 3, 4, 2)).astype(np.float32)
    labels = np.array([0, 1, 2, 1, 0])
    found = np.asarray(bound(x, labels, 0.75))
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    normalised = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(found[0], normalised[0], atol=1e-5)
    np.testing.assert_allclose(found[1], normalised[1] * [2, 3] + [5, -1], atol=1e-5)
    np.testing.assert_allclose(found[2, ..., 0], 7, atol=1e-5)

    extra = norm.extra_of(bound)
    np.testing.assert_allclose(extra["mean_C"], 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(extra["var_C"], 0.75 + 0.25 * var, rtol=1e-5)
    stored = np.asarray(bound(x, labels, None))
    by_hand = (x[0] - 0.25 * mean) / np.sqrt(0.75 + 0.25 * var + 1e-5)
    np.testing.assert_allclose(stored[0], by_hand, atol=1e-5)


def test_with_a_decay_of_1_nothing_is_stored(norm):
    extra = norm.init_extra(0)
    bound = norm.bind(norm.init(0), extra)
    bound(np.ones((2, 3, 3, 2), np.float32), np.array([0, 1]), 1.0)
    for name, array in norm.extra_of(bound).items():
        np.testing.assert_array_equal(array, extra[name])
