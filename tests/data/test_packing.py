import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.data.packing import pack, row_widths


def fill(source: np.ndarray, target: np.ndarray, widths: tuple[int, int]) -> float:
    """The share of positions with tokens in the rows of a packing, which it checks."""
    rows = pack(source, target, *widths, seed=0)
    assert np.bincount(rows, source).max() <= widths[0]
    assert np.bincount(rows, target).max() <= widths[1]
    count = np.count_nonzero(np.bincount(rows))
    assert count == rows.max() + 1  # none is empty
    return (source.sum() + target.sum()) / (count * sum(widths))


def lengths(count: int, median: float, spread: float, ratio: float, noise: float, longest: int):
    """Log-normal lengths, the target's being about `ratio` times the source's."""
    rng = np.random.default_rng(0)
    source = rng.lognormal(np.log(median), spread, count)
    target = source * rng.lognormal(np.log(ratio), noise, count)
    return (np.clip(side.round(), 2, longest).astype(np.int32) for side in (source, target))


# --- Packing ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairs_that_fill_a_row_come_together(seed):
    source, target = np.array([[7, 4], [4, 7], [5, 5], [5, 5], [6, 3], [3, 6]]).T
    row = pack(source, target, 10, 10, seed)
    assert row.max() == 2
    assert row[0] == row[5] != row[1]
    assert row[1] == row[4] != row[2]
    assert row[2] == row[3]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 13), st.integers(1, 11)), min_size=1, max_size=200),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 2**31),
)
def test_rows_hold_every_pair_and_no_more_than_their_width(pairs, more_source, more_target, seed):
    source, target = np.array(pairs).T
    widths = source.max() + more_source, target.max() + more_target
    row = pack(source, target, *widths, seed)
    assert row.shape == source.shape
    assert set(row.tolist()) == set(range(row.max() + 1))
    assert np.bincount(row, source).max() <= widths[0]
    assert np.bincount(row, target).max() <= widths[1]


@pytest.mark.parametrize(
    ("corpus", "limits", "lowest"),
    [
        # count, median, spread, ratio, noise, longest. In comments: what was measured when
        # this was written.
        ((29_000, 15, 0.4, 1.06, 0.15, 64), (64, 68), 0.96),  # like Multi30k; 0.969
        ((100_000, 22, 0.65, 1.1, 0.2, 256), (256, 256), 0.985),  # like WMT; 0.994
        ((100_000, 6, 0.5, 0.8, 0.3, 256), (256, 256), 0.975),  # short; 0.987
        ((2_000, 22, 0.65, 1.1, 0.2, 256), (256, 256), 0.975),  # few; 0.986
    ],
)
def test_rows_are_well_filled(corpus, limits, lowest):
    source, target = lengths(*corpus)
    assert lowest < fill(source, target, row_widths(source, target, *limits)) <= 1


def test_pairs_of_all_lengths_share_rows():
    source, target = lengths(20_000, 22, 0.65, 1.1, 0.2, 256)
    row = pack(source, target, 256, 288, seed=3)
    is_short = source <= np.median(source)
    share = np.bincount(row, is_short) / np.bincount(row)
    # Of rows filled in the order of length, half would have 0 and half 1.
    assert share.std() < 0.25
    # Nor do neighbours in the corpus, often of one document, share rows more than others.
    assert np.mean(np.diff(row) == 0) < 10 / row.max()


def test_rows_are_the_same_on_every_machine():
    # With another plan, a run would not go on with the batches it began with.
    source, target = lengths(5_000, 22, 0.65, 1.1, 0.2, 256)
    row = pack(source, target, 256, 288, seed=3)
    digest = hashlib.sha256(row.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "f028042d0fb9e431"


# --- Widths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source_mean", "target_mean", "least", "expected"),
    [
        (20, 20, (256, 256), (256, 256)),
        (20, 22, (256, 256), (256, 280)),  # 281.6 to the nearest multiple of 8
        (24, 20, (256, 256), (304, 256)),  # 307.2
        (16, 17, (64, 68), (64, 68)),  # as asked for, when that is right: no multiple of 8
        (100, 90, (256, 256), (304, 272)),  # three of each
        (129, 129, (256, 256), (392, 392)),  # 387: not 384, where there is room for two
        (10, 90, (256, 256), (256, 512)),  # at most twice
    ],
)
def test_row_widths(source_mean, target_mean, least, expected):
    source = np.array([source_mean - 3, source_mean, source_mean + 3])
    assert row_widths(source, np.array([target_mean] * 3), *least) == expected
