"""Features that scores cannot be over."""

import numpy as np
import pytest

from transformer.evaluation.image_scores import image_scores
from transformer.reports.image_scores import LARGEST, read_features
from transformer.system.errors import UserError

FEATURES_ND = np.random.default_rng(0).normal(size=(11, 3))


def changed(value):
    features_ND = FEATURES_ND.copy()
    features_ND[4, 1] = value
    return features_ND


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "a.npz has no arrays; give an .npz of features"),
        ({"x": FEATURES_ND, "y": FEATURES_ND}, "--real_array: .*a.npz has x, y; name one of them"),
        ({"x": np.zeros((11, 0))}, r"has shape \(11, 0\) and type float64; it must be"),
        ({"x": np.zeros((11, 3), int)}, "type int64; it must be"),
        ({"x": changed(np.nan)}, "numbers that are not finite, or beyond 3.4e.38; remove them"),
        ({"x": changed(np.inf)}, "numbers that are not finite"),
        ({"x": changed(-1e200)}, "or beyond 3.4e.38"),
        ({"x": FEATURES_ND[:5]}, "has 5 rows; give more"),
    ],
)
def test_features_that_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read_features("real", str(tmp_path / "a.npz"), None)


def test_features_that_are_read(tmp_path):
    np.save(tmp_path / "a.npy", FEATURES_ND)
    found = read_features("real", str(tmp_path / "a.npy"), None)
    np.testing.assert_array_equal(found, FEATURES_ND)


def test_the_largest_features_have_scores():
    features_ND = LARGEST * np.sign(FEATURES_ND)
    found = image_scores(features_ND, features_ND[::-1], -features_ND, "")
    assert all(np.isfinite(score["score"]) for score in found.values())
