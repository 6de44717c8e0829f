"""Scores of generated images, over features [N, D] of them and of real ones.

They depend on the features. The published FID uses those of an Inception network, which is not
here; scores over other features are never comparable with it, and have their own names.
"""

from typing import Any

import numpy as np

ROWS = 1000  # of a matrix of kernels or distances, at once
NEIGHBOURS = 3  # of precision and recall


def frechet_distance(
    mean1: np.ndarray, covariance1: np.ndarray, mean2: np.ndarray, covariance2: np.ndarray
) -> float:
    """|mean1 - mean2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), of two normal distributions."""
    # (C1 C2)^(1/2) has the trace of (R C2 R)^(1/2), R = C1^(1/2), which is symmetric.
    values, vectors = np.linalg.eigh(covariance1)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    values = np.linalg.eigvalsh(root @ covariance2 @ root)
    both = np.sqrt(np.maximum(values, 0)).sum()
    difference = mean1 - mean2
    trace = np.trace(covariance1) + np.trace(covariance2)
    return float(difference @ difference + trace - 2 * both)


def fid(real_ND: np.ndarray, fake_ND: np.ndarray) -> float:
    """The Frechet distance (Heusel et al. 2017) of the features' means and covariances."""
    real, fake = (x.astype(np.float64) for x in (real_ND, fake_ND))
    covariances = [np.atleast_2d(np.cov(x, rowvar=False)) for x in (real, fake)]
    return frechet_distance(real.mean(axis=0), covariances[0], fake.mean(axis=0), covariances[1])


def kid(real_ND: np.ndarray, fake_ND: np.ndarray) -> float:
    """The unbiased squared maximum mean discrepancy (Binkowski et al. 2018) with the kernel
    (x . y / D + 1)^3. It may be below 0."""
    real, fake = (x.astype(np.float64) for x in (real_ND, fake_ND))

    def summed(x: np.ndarray, y: np.ndarray) -> float:
        blocks = (x[i : i + ROWS] @ y.T for i in range(0, len(x), ROWS))
        return sum(float(((block / x.shape[1] + 1) ** 3).sum()) for block in blocks)

    def within(x: np.ndarray) -> float:
        of_itself = (((x * x).sum(axis=1) / x.shape[1] + 1) ** 3).sum()
        return (summed(x, x) - of_itself) / (len(x) * (len(x) - 1))

    return within(real) + within(fake) - 2 * summed(real, fake) / (len(real) * len(fake))


def precision_recall(real_ND: np.ndarray, fake_ND: np.ndarray) -> tuple[float, float]:
    """The share of generated images that lie among the real ones, and the reverse
    (Kynkaanniemi et al. 2019). An image lies among others if it is nearer to one of them than
    that one's third neighbour of its own kind."""
    real, fake = (x.astype(np.float64) for x in (real_ND, fake_ND))
    return _share_within(fake, real), _share_within(real, fake)


def _share_within(points: np.ndarray, others: np.ndarray) -> float:
    radii = np.concatenate(
        [  # neighbour 0 is the point itself
            np.partition(_squares(others[i : i + ROWS], others), NEIGHBOURS, axis=1)[:, NEIGHBOURS]
            for i in range(0, len(others), ROWS)
        ]
    )
    inside = 0
    for i in range(0, len(points), ROWS):
        inside += int((_squares(points[i : i + ROWS], others) <= radii).any(axis=1).sum())
    return inside / len(points)


def _squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared distances of each x to each y."""
    squares = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1)[None] - 2 * x @ y.T
    return np.maximum(squares, 0)


def compare(real_ND: np.ndarray, fake_ND: np.ndarray) -> dict[str, float]:
    """The scores of generated images, by their names; precision and recall in per cent."""
    precision, recall = precision_recall(real_ND, fake_ND)
    return {
        "fid_ours": fid(real_ND, fake_ND),
        "kid_ours": 1000 * kid(real_ND, fake_ND),
        "precision": 100 * precision,
        "recall": 100 * recall,
    }


def image_scores(
    reference_ND: np.ndarray, others_ND: np.ndarray, fake_ND: np.ndarray, features: str
) -> dict[str, dict[str, Any]]:
    """All scores and their floors, in the form of Outputs.

    reference_ND: features of one half of the real images. others_ND: features of the other half,
    for the floor, the score of real images themselves. features: their description, in words.
    """
    size = f"{len(fake_ND)} generated and {len(reference_ND)} real images"
    floor = f"{len(others_ND)} and {len(reference_ND)} real images"
    scores = compare(reference_ND, fake_ND)
    found = {
        "fid_ours": (scores["fid_ours"], "Frechet distance, ", size),
        "fid_ours_floor": (fid(reference_ND, others_ND), "Frechet distance, ", floor),
        "kid_ours": (scores["kid_ours"], "1000 x squared MMD, ", size),
        "kid_ours_floor": (1000 * kid(reference_ND, others_ND), "1000 x squared MMD, ", floor),
        "precision": (scores["precision"], "per cent, ", size),
        "recall": (scores["recall"], "per cent, ", size),
    }
    return {
        name: {"score": value, "definition": f"{kind}{of}, {features}", "needs_model": True}
        for name, (value, kind, of) in found.items()
    }
