import collections
import dataclasses

import numpy as np
import pytest
from small_bert import CONFIG, many, write_vocabulary

from transformer.data.documents import cut
from transformer.data.masking import MaskedRows, mask, num_predictions


@pytest.fixture
def tokenizer(tmp_path):
    return write_vocabulary(tmp_path)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("rate", "length", "count"),
    [
        *[(0.15, 128, 19), (0.15, 10, 2), (0.15, 30, 4), (0.15, 3, 1)],
        *[(0.15, 512, 20), (0.15, 140, 20), (0.0, 9, 1)],
        (0.07, 150, 10),  # of 10.5, which as a float is a little more
    ],
)
def test_how_many_tokens_are_predicted(rate, length, count):
    """15 % and others, a half to the even number, at least 1 and at most 20."""
    assert num_predictions(np.array([length, 5]), rate, 20)[0] == count


def test_eighty_ten_ten(tokenizer):
    """Of 20,000 tokens; a random one may be any of the vocabulary, and also what was there."""
    word = tokenizer.ids["one"]
    tokens = np.full(20_002, word, np.int32)
    tokens[0], tokens[-1] = tokenizer.cls, tokenizer.sep
    chosen, hidden = mask(tokens, 20_000, tokenizer, rng(), whole_words=False)
    assert chosen.tolist() == list(range(1, 20_001))
    counts = collections.Counter(hidden[chosen].tolist())
    size = tokenizer.vocab_size
    assert counts[tokenizer.mask] / 20_000 == pytest.approx(0.8 + 0.1 / size, abs=0.01)
    assert counts[word] / 20_000 == pytest.approx(0.1 + 0.1 / size, abs=0.01)
    assert len(counts) == size  # special ones included
    others = [n for i, n in counts.items() if i not in (word, tokenizer.mask)]
    assert np.mean(others) == pytest.approx(2000 / size, rel=0.1)
    assert hidden[0] == tokenizer.cls
    assert hidden[-1] == tokenizer.sep
    assert (tokens[1:-1] == word).all()  # the original is as it was


def test_special_tokens_are_never_chosen_and_all_others_alike(tokenizer):
    tokens = np.array([tokenizer.cls, 9, 10, 11, tokenizer.sep, 12, 13, tokenizer.sep], np.int32)
    counts = collections.Counter()
    for seed in range(500):
        chosen, _ = mask(tokens, 2, tokenizer, rng(seed), whole_words=False)
        assert len(chosen) == 2
        counts.update(chosen.tolist())
    assert sorted(counts) == [1, 2, 3, 5, 6]
    np.testing.assert_allclose(list(counts.values()), 200, rtol=0.2)


def test_whole_words(tokenizer):
    """unknown one, fourteen: words of 4, 1, 1 and 2 pieces; B begins with a piece of a word."""
    first = tokenizer.encode_batch(["unknown one, fourteen"])[0]
    teen = tokenizer.ids["##teen"]
    tokens = np.array([tokenizer.cls, *first, tokenizer.sep, teen, tokenizer.sep], np.int32)
    words = [{1, 2, 3, 4}, {5}, {6}, {7, 8}, {10}]
    seen = collections.Counter()
    for seed in range(300):
        chosen, hidden = mask(tokens, 3, tokenizer, rng(seed), whole_words=True)
        picked = [word for word in words if word & set(chosen.tolist())]
        assert set.union(*picked) == set(chosen.tolist())
        assert 2 <= len(chosen) <= 3
        seen.update(chosen.tolist())
        np.testing.assert_array_equal(np.delete(hidden, chosen), np.delete(tokens, chosen))
    assert set(seen) == {5, 6, 7, 8, 10}  # four are too many
    assert seen[7] == seen[8]


# --- Rows ---------------------------------------------------------------------------------


@pytest.fixture
def sequences():
    text = many(count=7)
    tokens = 5 + np.arange(len(text.tokens), dtype=np.int32) % 30  # no special ones
    return cut(dataclasses.replace(text, tokens=tokens), 20, 0.3, 1, True, seed=0)


DATA = dataclasses.replace(
    CONFIG.data, max_length=40, max_predictions=9, mask_rate=0.15, whole_words=False, packing=True
)


def rows_of(sequences, tokenizer, seed=5, **changes):
    return MaskedRows(sequences, tokenizer, dataclasses.replace(DATA, **changes), seed)


def test_a_row_holds_its_sequences(sequences, tokenizer):
    """Unmasked again, each sequence is [CLS] A [SEP] B [SEP] with its types and its label."""
    rows = rows_of(sequences, tokenizer)
    batch = rows.masked(np.arange(-1, len(rows)), 1.5)
    assert (batch.weight_B == 1.5).all()
    assert rows.most_in_row == batch.firsts_BC.shape[1] > 1
    for field in (batch.tokens_BS, batch.segments_BS, batch.labels_BP):
        assert not field[0].any()  # row -1
    assert (batch.is_random_BC[0] == -1).all()
    tokens_BS = batch.tokens_BS.copy()
    for b in range(len(tokens_BS)):
        real = batch.labels_BP[b] > 0
        tokens_BS[b, batch.masked_BP[b][real]] = batch.labels_BP[b][real]
        assert len(set(batch.masked_BP[b][real].tolist())) == real.sum()
    seen = []
    for row in range(len(rows)):
        b = row + 1
        for column, number in enumerate(rows.pairs_of(np.array([row]))):
            a, a_end, start, end = sequences.spans[number]
            own = batch.segments_BS[b] == column + 1
            text = sequences.documents.tokens
            expected = [tokenizer.cls, *text[a:a_end], tokenizer.sep, *text[start:end]]
            assert tokens_BS[b][own].tolist() == [*expected, tokenizer.sep]
            types = [0] * (a_end - a + 2) + [1] * (end - start + 1)
            assert batch.types_BS[b][own].tolist() == types
            assert np.flatnonzero(own)[0] == batch.firsts_BC[b, column]
            assert batch.is_random_BC[b, column] == sequences.is_random[number]
            hidden = own[batch.masked_BP[b]] & (batch.labels_BP[b] > 0)
            assert hidden.sum() == rows.predictions[number]
            seen.append(number)
    assert sorted(seen) == list(range(len(sequences)))
    assert (batch.labels_BP > 0).sum() == rows.predictions.sum()
    assert rows.num_tokens == np.count_nonzero(batch.segments_BS) == sequences.lengths.sum()
    assert rows.num_tokens_of(np.array([[-1, 0]])) == np.count_nonzero(batch.segments_BS[1])
    assert rows.weight(np.arange(len(rows))) == pytest.approx(rows.predictions.mean())


def test_masks_are_a_function_of_seed_sequence_and_visit(sequences, tokenizer):
    """Not of the rows beside, nor of how the rows are packed."""
    rows = rows_of(sequences, tokenizer)
    numbers, count = np.arange(len(rows)), len(rows)
    first = rows.masked(numbers, 1.0)
    last = rows.masked(numbers[-1:], 1.0)
    np.testing.assert_array_equal(last.tokens_BS[0], first.tokens_BS[-1])
    again = rows.masked(numbers.reshape(1, -1), 1.0)
    np.testing.assert_array_equal(again.tokens_BS[0], first.tokens_BS)
    # Another visit, and another seed, mask other tokens of the same sequences.
    for other in (
        rows.masked(numbers + count, 1.0),
        rows_of(sequences, tokenizer, seed=6, packing=False).masked(numbers, 1.0),
    ):
        assert not np.array_equal(other.masked_BP, first.masked_BP)
    second = rows.masked(numbers + count, 1.0)
    np.testing.assert_array_equal(second.segments_BS, first.segments_BS)

    alone = rows_of(sequences, tokenizer, packing=False)
    assert alone.most_in_row == 1
    by_number = alone.masked(np.arange(len(alone)), 1.0)
    column = rows.pairs_of(np.array([0]))
    for i, number in enumerate(column):
        own = first.segments_BS[0] == i + 1
        length = sequences.lengths[number]
        np.testing.assert_array_equal(first.tokens_BS[0][own], by_number.tokens_BS[number][:length])
