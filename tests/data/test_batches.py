import numpy as np
import pytest

from transformer.data.batches import (
    Batch,
    EvaluationBatches,
    Layout,
    PackedPairs,
    TrainingBatches,
    layout,
)
from transformer.data.packing import row_widths
from transformer.data.token_files import TokenizedPairs
from transformer.data.vocabulary import BOS, EOS


def tokenized(pairs: list[tuple[list[int], list[int]]]) -> TokenizedPairs:
    """As the token cache gives them: uint16, one after the other."""

    def side(i):
        lengths = [len(pair[i]) for pair in pairs]
        tokens = np.array([t for pair in pairs for t in pair[i]], np.uint16)
        return tokens, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    return TokenizedPairs(*side(0), *side(1), report={"total": len(pairs), "pairs": len(pairs)})


def numbered(source_lengths: list[int], target_lengths: list[int]) -> TokenizedPairs:
    """Pairs that can be told apart: pair i holds the token 10 + i, and EOS at its ends."""
    return tokenized(
        [
            ([10 + i] * (s - 1) + [EOS], [10 + i] * (t - 1) + [EOS])
            for i, (s, t) in enumerate(zip(source_lengths, target_lengths))
        ]
    )


def many_pairs(count: int = 101, longest: int = 11) -> TokenizedPairs:
    rng = np.random.default_rng(7)
    return numbered(*rng.integers(2, longest + 1, (2, count)).tolist())


def pairs_of(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sentence pairs of a batch; checks segment ids and `tgt_in` on the way."""
    rows = [x.reshape(-1, x.shape[-1]) for x in batch]
    pairs = []
    for src, src_segments, tgt_in, tgt_out, tgt_segments in zip(*rows):
        count = src_segments.max()
        assert tgt_segments.max() == count
        for tokens, segments in (
            (src, src_segments),
            (tgt_in, tgt_segments),
            (tgt_out, tgt_segments),
        ):
            # 1 1 1 2 2 3 0 0: ids in order, none missing, padding at the end.
            assert (np.diff(segments[segments > 0]) >= 0).all()
            assert set(segments[segments > 0]) == set(range(1, count + 1))
            assert (segments[(segments > 0).sum() :] == 0).all()
            assert (tokens[segments == 0] == 0).all()
        for segment in range(1, count + 1):
            source, target = src[src_segments == segment], tgt_out[tgt_segments == segment]
            assert tgt_in[tgt_segments == segment].tolist() == [BOS, *target[:-1]]
            pairs.append((tuple(source.tolist()), tuple(target.tolist())))
    return pairs


def all_pairs(pairs: TokenizedPairs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    sides = pairs.source, pairs.target
    return [tuple(tuple(side(i).tolist()) for side in sides) for i in range(len(pairs))]


def assert_equal(a: Batch, b: Batch) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


# --- Corpora ------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [2**23, 6])  # pairs that are packed together
def test_a_corpus_comes_as_often_as_its_weight_says(block, monkeypatch):
    monkeypatch.setattr("transformer.data.rows._BLOCK", block)
    rng = np.random.default_rng(0)
    parts = [numbered(*rng.integers(2, 6, (2, count)).tolist()) for count in (17, 11, 13)]
    packed = PackedPairs(parts[0], 7, 7, 3, True, parts[1:], (1.0, 2.0, 0.5))
    counts = [len(rows) for rows in packed.corpora]
    assert packed.rows_of_corpora == [counts[0], 2 * counts[1], round(0.5 * counts[2])]

    # 1. Rows are those of each corpus, and a batch has the rows of all.
    whole = packed.batch(np.arange(len(packed)))
    alone = [PackedPairs(pairs, 7, 7, 3).batch(np.arange(n)) for pairs, n in zip(parts, counts)]
    assert_equal(whole, Batch(*(np.concatenate(x) for x in zip(*alone, strict=True))))
    assert len(pairs_of(whole)) == 17 + 11 + 13
    for number in (0, 16, 17, 27, 28, 40):
        found = [side.tolist() for side in packed.pair(number)]
        corpus = np.searchsorted([17, 28], number, side="right")
        i = number - [0, 17, 28][corpus]
        assert found == [parts[corpus].source(i).tolist(), parts[corpus].target(i).tolist()]

    # 2. An epoch has each row as often as it should; of half a corpus, first one half, then the
    # other.
    size = sum(packed.rows_of_corpora)
    batches = TrainingBatches(packed, Layout(size, 1, size), seed=5)
    halves = []
    for epoch in range(4):
        rows, times = np.unique(batches.rows(epoch), return_counts=True)
        first, second, third = (np.isin(rows, own) for own in packed.corpora)
        assert times[first].tolist() == counts[0] * [1]
        assert times[second].tolist() == counts[1] * [2]
        assert times[third].tolist() == packed.rows_of_corpora[2] * [1]
        halves.append(set(rows[third].tolist()))
    assert not halves[0] & halves[1]
    assert (batches.rows(0) != batches.rows(1)).any()
    assert set.union(*halves) == set(packed.corpora[2].tolist())

    # 3. The rows of a step depend on nothing before it; other weights are another plan.
    small = TrainingBatches(packed, Layout(3, 1, 3), seed=5)
    later = [small.rows(step).tolist() for step in (9, 2, 9)]
    assert later[0] == later[2]
    assert np.concatenate([small.rows(i).ravel() for i in range(size)]).tolist() == (
        np.concatenate([batches.rows(i).ravel() for i in range(3)]).tolist()
    )
    other = PackedPairs(parts[0], 7, 7, 3, True, parts[1:], (1.0, 2.0, 0.6))
    assert TrainingBatches(other, Layout(3, 1, 3), seed=5).fingerprint != small.fingerprint
    assert sum(packed.shares) == pytest.approx(1)
    tokens = [n * x.num_tokens for n, x in zip((1, 2, 1), alone)]
    assert packed.shares[1] == pytest.approx(
        tokens[1] / (tokens[0] + tokens[1] + tokens[2] * packed.rows_of_corpora[2] / counts[2])
    )


# --- Rows ---------------------------------------------------------------------------------


def test_a_row_by_hand():
    packed = PackedPairs(
        tokenized([([5, 6, EOS], [7, EOS]), ([8, EOS], [9, 10, EOS])]), 7, 6, seed=3
    )
    assert (len(packed), packed.most_examples) == (1, 2)
    assert packed.fill == 10 / 13
    batch = packed.batch(np.array([0]))
    assert_equal(
        batch,
        Batch(
            src_BS=[[5, 6, EOS, 8, EOS, 0, 0]],
            src_segments_BS=[[1, 1, 1, 2, 2, 0, 0]],
            tgt_in_BT=[[BOS, 7, BOS, 9, 10, 0]],
            tgt_out_BT=[[7, EOS, 9, 10, EOS, 0]],
            tgt_segments_BT=[[1, 1, 2, 2, 2, 0]],
        ),
    )
    assert {x.dtype for x in batch} == {np.dtype(np.int32)}
    assert batch.num_tokens == 10


def test_a_full_row_begins_with_bos_not_with_its_last_token():
    packed = PackedPairs(tokenized([([5, EOS], [7, 8, EOS])]), 2, 3, seed=3)
    batch = packed.batch(np.array([0]))
    assert batch.tgt_in_BT.tolist() == [[BOS, 7, 8]]
    assert packed.fill == 1


def test_rows_of_a_batch_as_asked_for():
    packed = PackedPairs(numbered([3, 3, 3], [3, 3, 3]), 5, 5, seed=3)
    assert len(packed) == 3
    batch = packed.batch(np.array([2, -1, 0, 2]))
    pair = packed.pairs_by_row
    assert batch.src_BS[:, 0].tolist() == [10 + pair[2], 0, 10 + pair[0], 10 + pair[2]]
    assert batch.tgt_in_BT[:, 0].tolist() == [BOS, 0, BOS, BOS]
    for x in batch:
        assert (x[1] == 0).all()
    assert batch.num_tokens == 3 * 6


def test_without_packing_each_pair_has_a_row():
    pairs = numbered([3, 2, 5, 1], [1, 4, 2, 3])
    widths = row_widths(pairs.source_lengths, pairs.target_lengths, 64, 64, packing=False)
    assert widths == (5, 4)
    packed = PackedPairs(pairs, *widths, seed=3, packing=False)
    assert packed.fill == 21 / 36
    batch = packed.batch(np.array([2, 0, -1]))
    assert batch.src_BS.tolist() == [[12, 12, 12, 12, EOS], [10, 10, EOS, 0, 0], 5 * [0]]
    assert batch.tgt_in_BT.tolist() == [[BOS, 12, 0, 0], [BOS, 0, 0, 0], 4 * [0]]
    assert batch.src_segments_BS.max() == batch.tgt_segments_BT.max() == 1
    # A longer pair, and rows for two devices.
    batches = list(EvaluationBatches.of_pairs(pairs, 4, 3, rows=5, num_shards=2, packing=False))
    assert [batch.src_BS.shape for batch in batches] == [(2, 8), (2, 8)]
    assert [pair for batch in batches for pair in pairs_of(batch)] == all_pairs(pairs)


# --- The batches of a run -----------------------------------------------------------------


def test_the_fingerprint_shows_other_batches_and_nothing_else(monkeypatch):
    def batches(count=101, widths=(17, 13), seed=3, rows=(7, 2, 4), packing=True):
        packed = PackedPairs(many_pairs(count), *widths, seed, packing)
        return TrainingBatches(packed, Layout(*rows), seed)

    first = batches()
    assert len(first.fingerprint) == 64
    assert first[5] is not None  # of another epoch
    # How an update is split over devices does not matter, nor do the tokens themselves.
    assert first.fingerprint == batches(rows=(7, 1, 8)).fingerprint
    others = [
        batches(count=97),
        batches(widths=(17, 14)),
        batches(seed=4),
        batches(rows=(8, 2, 4)),
        batches(packing=False),
    ]
    fingerprints = {first.fingerprint, *(other.fingerprint for other in others)}
    assert len(fingerprints) == 6
    # Another version of NumPy might draw other numbers for the order of the rows alone.
    other = batches()
    real = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: real((*seed, 1)))
    assert other.fingerprint not in fingerprints


# --- How an update is split ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_shards", "max_tokens_per_device", "expected"),
    [
        (1, 0, Layout(97, 1, 97)),
        (2, 0, Layout(97, 1, 98)),
        (4, 0, Layout(97, 1, 100)),
        (8, 0, Layout(97, 1, 104)),
        # 64 rows fit: 2 steps, of 49 rows and not of 64.
        (1, 64 * 256, Layout(97, 2, 49)),
        (2, 64 * 256, Layout(97, 1, 98)),
        # 7 rows fit.
        (1, 7 * 256 + 255, Layout(97, 14, 7)),
        (2, 7 * 256, Layout(97, 7, 14)),
        (4, 7 * 256, Layout(97, 4, 28)),
        (8, 7 * 256, Layout(97, 2, 56)),
        # Not even one fits: one at a time all the same.
        (4, 100, Layout(97, 25, 4)),
        # More fit than are needed.
        (2, 10**9, Layout(97, 1, 98)),
    ],
)
def test_layout(num_shards, max_tokens_per_device, expected):
    assert layout(97 * 256, max_tokens_per_device, 256, 256, num_shards) == expected


def test_layout_counts_the_wider_side():
    assert layout(1000, 0, 100, 50, 1) == layout(1000, 0, 50, 100, 1) == Layout(10, 1, 10)
    assert layout(1000, 0, 2000, 50, 1) == Layout(1, 1, 1)


# --- Evaluation ---------------------------------------------------------------------------


def test_evaluation_cuts_nothing_and_makes_fewer_rows_of_longer_ones():
    pairs = numbered([3, 20, 1, 4], [12, 5, 1, 3])
    batches = list(EvaluationBatches.of_pairs(pairs, 7, 11, rows=12, num_shards=2))
    # 20 tokens are three times 7: a third of the rows.
    assert batches[0].src_BS.shape == (4, 21)
    assert batches[0].tgt_in_BT.shape == (4, 22)
    found = [pair for batch in batches for pair in pairs_of(batch)]
    assert sorted(found) == sorted(all_pairs(pairs))
    batches = list(EvaluationBatches.of_pairs(pairs, 7, 11, rows=2, num_shards=2))
    assert batches[0].src_BS.shape == (2, 21)
