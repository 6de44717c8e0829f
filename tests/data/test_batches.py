import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_transformer import small

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
from transformer.models.loss import cross_entropy


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


# --- Rows ---------------------------------------------------------------------------------


def test_a_row_by_hand():
    packed = PackedPairs(
        tokenized([([5, 6, EOS], [7, EOS]), ([8, EOS], [9, 10, EOS])]), 7, 6, seed=3
    )
    assert len(packed) == 1
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


def test_packing_depends_on_the_seed():
    first = [
        pairs_of(PackedPairs(many_pairs(), 17, 17, seed=seed).batch(np.array([0])))
        for seed in (3, 3, 4)
    ]
    assert first[0] == first[1] != first[2]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=90),
    seed=st.integers(0, 2**31),
)
def test_packing_keeps_every_token(lengths, seed):
    # Pairs of length 1 are EOS alone, as an empty validation line is.
    pairs = numbered(*map(list, zip(*lengths)))
    packed = PackedPairs(pairs, 7, 5, seed)
    batch = packed.batch(np.arange(len(packed)))
    assert sorted(pairs_of(batch)) == sorted(all_pairs(pairs))
    assert (batch.src_segments_BS.max(axis=1) > 0).all()  # no empty row
    np.testing.assert_allclose(packed.fill, batch.num_tokens / (len(packed) * 12))


def test_no_gradient_reaches_a_packed_neighbour(random_params):
    # No token occurs twice, so that a row of a gradient of an embedding is of one sentence.
    source, target = np.arange(4, 18), np.arange(4, 21)
    pairs = list(zip(np.split(source, [3, 8, 10]), np.split(target, [4, 6, 12])))
    packed = PackedPairs(tokenized(pairs), 17, 19, seed=3)
    batch = packed.batch(np.array([0]))
    assert batch.src_segments_BS.max() == len(pairs)
    model = small()

    def loss_by_sentence(params):
        logits_BTV = model.bind(params)(
            *map(jnp.asarray, (batch.src_BS, batch.tgt_in_BT)),
            *map(jnp.asarray, (batch.src_segments_BS, batch.tgt_segments_BT)),
        )
        return jnp.stack(
            [
                cross_entropy(logits_BTV, batch.tgt_out_BT, batch.tgt_segments_BT == i, 0.1).loss
                for i in range(1, len(pairs) + 1)
            ]
        )

    gradients = jax.jit(jax.jacrev(loss_by_sentence))(random_params(model))
    for name, sentences in (
        ("source_embedding", [source.tolist() for source, _ in pairs]),
        ("target_embedding", [[BOS, *target[:-1].tolist()] for _, target in pairs]),
    ):
        reached = np.any(np.asarray(gradients[name]["table_VD"]) != 0, axis=-1)
        assert [np.flatnonzero(tokens).tolist() for tokens in reached] == sentences


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


def training_batches(seed: int = 3, rows: Layout | None = None) -> TrainingBatches:
    packed = PackedPairs(many_pairs(), 17, 13, seed)
    return TrainingBatches(packed, rows or Layout(7, 2, 4), seed)


def test_every_pair_once_an_epoch():
    batches = training_batches()
    num_rows = len(batches.packed)
    assert num_rows % 7  # so epochs end within an update
    updates = 3 * num_rows // 7 + 1
    assert batches.updates_per_epoch == num_rows / 7

    wanted = collections.Counter(all_pairs(many_pairs()))
    rows = []
    for k in range(updates):
        batch = batches[k]
        assert batch.src_BS.shape == (2, 4, 17)
        assert batch.tgt_out_BT.shape == (2, 4, 13)
        flat = Batch(*(x.reshape(8, -1) for x in batch))
        rows += [Batch(*(x[i : i + 1] for x in flat)) for i in range(8)][:7]
        assert not any(x[7].any() for x in flat)  # the one row too many
    orders = []
    for epoch in range(3):
        of_epoch = rows[epoch * num_rows : (epoch + 1) * num_rows]
        found = [pair for row in of_epoch for pair in pairs_of(row)]
        assert collections.Counter(found) == wanted
        orders.append(found)
    assert orders[0] != orders[1] != orders[2]


def test_an_update_may_hold_several_epochs():
    packed = PackedPairs(numbered([3, 4, 5], [5, 4, 3]), 5, 5, seed=11)
    assert len(packed) == 3
    batch = TrainingBatches(packed, Layout(8, 1, 8), seed=11)[0]
    counts = collections.Counter(pairs_of(batch))
    assert sorted(counts.values()) == [2, 3, 3]
    assert set(counts) == set(all_pairs(packed.pairs))


def test_a_batch_depends_on_seed_and_step_only():
    in_order = [training_batches()[k] for k in range(23)]  # a new object for each
    batches = training_batches()
    for k in (22, 0, 13, 13, 5, 22, 1):  # jumping, between epochs and back
        assert_equal(batches[k], in_order[k])


def test_other_seeds_give_other_batches():
    packed = PackedPairs(many_pairs(), 17, 13, seed=3)
    first = [pairs_of(TrainingBatches(packed, Layout(7, 2, 4), seed)[0]) for seed in (3, 3, 4)]
    assert first[0] == first[1] != first[2]


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


def test_layout_of_the_paper():
    assert layout(25_000, 0, 256, 256, 8) == Layout(97, 1, 104)


def test_layout_counts_the_wider_side():
    assert layout(1000, 0, 100, 50, 1) == layout(1000, 0, 50, 100, 1) == Layout(10, 1, 10)
    assert layout(1000, 0, 2000, 50, 1) == Layout(1, 1, 1)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(2, 300), st.integers(1, 16))
def test_layout_loses_no_row(tokens, max_tokens, width, num_shards):
    found = layout(tokens, max_tokens, width, width, num_shards)
    assert found.rows == max(1, tokens // width)
    assert found.rows_per_step % num_shards == 0
    assert found.accumulation * found.rows_per_step >= found.rows
    rows_per_device = found.rows_per_step // num_shards
    assert not max_tokens or rows_per_device <= max(1, max_tokens // width)
    # Less than one row a device and step is empty.
    spare = found.accumulation * found.rows_per_step - found.rows
    assert spare < found.accumulation * num_shards


def test_the_rows_of_an_update_do_not_depend_on_the_devices():
    layouts = [
        layout(7 * 17, max_tokens, 17, 13, num_shards)
        for num_shards, max_tokens in ((1, 0), (2, 0), (8, 0), (1, 34), (4, 17))
    ]
    shapes = [(rows.accumulation, rows.rows_per_step) for rows in layouts]
    assert shapes == [(1, 7), (1, 8), (1, 8), (4, 2), (2, 4)]
    updates = [pairs_of(training_batches(rows=rows)[5]) for rows in layouts]
    assert all(update == updates[0] for update in updates)


# --- Evaluation ---------------------------------------------------------------------------


def test_evaluation_holds_every_pair_once():
    pairs = many_pairs()
    batches = list(EvaluationBatches.of_pairs(pairs, 17, 13, rows=6, num_shards=2))
    shapes = {(batch.src_BS.shape, batch.tgt_in_BT.shape) for batch in batches}
    assert len(shapes) == 1
    found = [pair for batch in batches for pair in pairs_of(batch)]
    assert sorted(found) == sorted(all_pairs(pairs))
    wide = list(EvaluationBatches.of_pairs(pairs, 256, 131, rows=5, num_shards=1))
    assert wide[0].src_BS.shape == (5, 256)
    assert wide[0].tgt_in_BT.shape == (5, 131)


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


def test_evaluation_batches_have_one_shape():
    pairs = numbered([5] * 13, [64] * 13)
    batches = list(EvaluationBatches.of_pairs(pairs, 5, 64, rows=3, num_shards=1))
    assert len(batches) == 5
    assert {batch.tgt_in_BT.shape for batch in batches} == {(3, 64)}
    assert [len(pairs_of(batch)) for batch in batches] == [3, 3, 3, 3, 1]
