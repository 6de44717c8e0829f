import numpy as np
import pytest
from small_bert import write_vocabulary

from transformer.data.labelled import LabelledRows, truncated


@pytest.mark.parametrize(
    ("lengths", "room", "expected"),
    [
        ((5, 3), 9, (5, 3)),
        ((5, 3), 7, (4, 3)),
        ((9, 3), 7, (4, 3)),  # 9 3, ..., 3 3 would be too few
        ((3, 9), 5, (3, 2)),
        ((9, 9), 7, (4, 3)),
        ((9, 0), 4, (4, 0)),
    ],
)
def test_the_longer_text_loses_tokens_one_by_one(lengths, room, expected):
    assert truncated(*lengths, room) == expected
    a, b = lengths
    while a + b > room:  # as the original code has it
        if a > b:
            a -= 1
        else:
            b -= 1
    assert (a, b) == expected


@pytest.fixture
def tokenizer(tmp_path):
    return write_vocabulary(tmp_path)


TEXTS = [("one two", "three"), ("unknown", ""), ("two", "one one fourteen"), ("a " * 40, "b " * 9)]


def test_pairs_in_packed_rows(tokenizer):
    rows = LabelledRows(TEXTS, [2, 0, 1, 1.5], tokenizer, 24, seed=0, packing=True)
    assert rows.num_cut == 1
    batch = rows.batch(np.arange(-1, len(rows)))
    assert not batch.is_real_BC[0].any()
    assert not batch.tokens_BS[0].any()
    seen = {}
    for row in range(len(rows)):
        for column, number in enumerate(rows.pairs_of(np.array([row]))):
            own = batch.segments_BS[row + 1] == column + 1
            assert np.flatnonzero(own)[0] == batch.firsts_BC[row + 1, column]
            assert batch.is_real_BC[row + 1, column]
            text = tokenizer.decode(batch.tokens_BS[row + 1][own])
            types = batch.types_BS[row + 1][own].tolist()
            seen[number] = text, types, batch.labels_BC[row + 1, column]
    assert seen[0] == ("[CLS] one two [SEP] three [SEP]", [0, 0, 0, 0, 1, 1], 2)
    assert seen[1] == ("[CLS] unknown [SEP] [SEP]", [0] * 6 + [1], 0)
    assert seen[2][0] == "[CLS] two [SEP] one one fourteen [SEP]"
    assert seen[3][0] == f"[CLS] {'a ' * 12}[SEP] {'b ' * 9}[SEP]"
    assert seen[3][2] == 1.5
    assert batch.is_real_BC.sum() == 4


def test_one_text_a_row(tokenizer):
    texts = [(first, None) for first, _ in TEXTS]
    rows = LabelledRows(texts, [0] * 4, tokenizer, 24, seed=0, packing=False)
    batch = rows.batch(np.arange(4).reshape(2, 2))
    assert batch.tokens_BS.shape == (2, 2, 24)
    assert batch.firsts_BC.shape == (2, 2, 1)
    assert tokenizer.decode(batch.tokens_BS[0, 0][:4].tolist()) == "[CLS] one two [SEP]"
    assert not batch.types_BS.any()
    assert batch.segments_BS[1, 1].all()  # cut to the width
