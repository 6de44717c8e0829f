"""Scores of images beside closed forms, SciPy, and loops; features that have none."""

import numpy as np
import pytest
import scipy.linalg

from transformer.commands.feature_scores import LARGEST, read_features
from transformer.metrics.image_scores import (
    fid,
    frechet_distance,
    image_scores,
    kid,
    precision_recall,
)
from transformer.system.errors import UserError

RNG = np.random.default_rng(0)
REAL, FAKE = RNG.normal(size=(67, 5)), RNG.normal(0.5, 1.3, size=(43, 5))


def test_golden_frechet_distance():
    """N(0, 1) and N(1, 4): 1 + 1 + 4 - 2 * 2."""
    one, four = np.eye(1), 4 * np.eye(1)
    assert frechet_distance(np.zeros(1), one, np.ones(1), four) == pytest.approx(2)


def test_fid_is_that_of_scipy():
    covariances = [np.cov(x, rowvar=False) for x in (REAL, FAKE)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    difference = REAL.mean(axis=0) - FAKE.mean(axis=0)
    expected = difference @ difference + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert fid(REAL, FAKE) == pytest.approx(expected)
    assert fid(REAL, REAL) == pytest.approx(0, abs=1e-9)


def test_kid_is_the_sum_over_pairs():
    def kernel(x, y):
        return (x @ y / 5 + 1) ** 3

    m, n = len(REAL), len(FAKE)
    real = sum(kernel(REAL[i], REAL[j]) for i in range(m) for j in range(m) if i != j)
    fake = sum(kernel(FAKE[i], FAKE[j]) for i in range(n) for j in range(n) if i != j)
    both = sum(kernel(x, y) for x in REAL for y in FAKE)
    expected = real / (m * (m - 1)) + fake / (n * (n - 1)) - 2 * both / (m * n)
    assert kid(REAL, FAKE) == pytest.approx(expected)


def test_precision_and_recall_on_a_line():
    """Real 0 to 9, whose third neighbour is 2 or 3 away; generated: four inside, three far."""
    real = np.arange(10.0)[:, None]
    fake = np.array([4.5, 4.6, 4.7, 4.8, 100, 200, 300])[:, None]
    precision, recall = precision_recall(real, fake)
    assert precision == pytest.approx(4 / 7)
    # The spheres of those four reach the 3 neighbours 0.2 or 0.3 away, and no real one beyond;
    # those of the far ones reach as far as 95.2, 195.2, 295.2: from 100 down to 4.8.
    assert recall == pytest.approx(5 / 10)


def test_scores_say_of_what_they_are():
    found = image_scores(REAL[:30], REAL[30:60], FAKE, "some features")
    assert found["fid_ours"]["score"] == fid(REAL[:30], FAKE)
    assert found["fid_ours_floor"]["score"] == fid(REAL[:30], REAL[30:60])
    assert found["fid_ours_floor"]["score"] < found["fid_ours"]["score"]
    assert "43 generated and 30 real images, some features" in found["fid_ours"]["definition"]
    assert all(score["needs_model"] for score in found.values())


FEATURES_ND = RNG.normal(size=(11, 3))


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


def test_the_largest_features_have_scores():
    features_ND = LARGEST * np.sign(FEATURES_ND)
    found = image_scores(features_ND, features_ND[::-1], -features_ND, "")
    assert all(np.isfinite(score["score"]) for score in found.values())
