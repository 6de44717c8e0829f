import collections
import gzip

import numpy as np
import pytest
from small_bert import documents, many, write_vocabulary

from transformer.data.documents import (
    cut,
    read_documents,
    text_sha256,
    tokenize,
)
from transformer.data.records import Records
from transformer.system.errors import UserError

# --- Text ---------------------------------------------------------------------------------


def texts(*files: str) -> Records:
    return Records(files, {"text_field": "text"})


def test_documents_are_between_empty_lines_and_ends_of_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\n two \n\n \nthree\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\r\n\r\n"))
    files = texts(f"{tmp_path}/a.txt", f"{tmp_path}/b.txt.gz")
    assert list(read_documents(files)) == [["one", "two"], ["three"], ["four"]]
    (tmp_path / "c.txt").write_text("one\ntwo\n\n\n\nthree\n\nfour")
    assert text_sha256(files) == text_sha256(texts(str(tmp_path / "c.txt")))
    (tmp_path / "c.txt").write_text("one\n\ntwo\n\nthree\n\nfour")
    assert text_sha256(files) != text_sha256(texts(str(tmp_path / "c.txt")))


def test_lines_as_ids(tmp_path, monkeypatch):
    tokenizer = write_vocabulary(tmp_path)
    path = tmp_path / "text"
    # A line, and a document, of a control character alone have no tokens.
    path.write_text("one two\n\x08\nthree\n\n\x08\n\nfourteen\n")
    expected = tokenizer.encode_batch(["one two three fourteen"])[0]
    for block in (10_000, 1):
        monkeypatch.setattr("transformer.data.documents._BLOCK", block)
        found = tokenize(texts(str(path)), tokenizer)
        assert found.tokens.tolist() == expected
        assert found.offsets.tolist() == [0, 2, 3, 5]
        assert found.starts.tolist() == [0, 2, 3]
    path.write_text("\n \n")
    with pytest.raises(UserError, match="text hold no documents; give text with one sentence"):
        tokenize(texts(str(path)), tokenizer)


# --- Sequences ----------------------------------------------------------------------------


def test_pairs_are_those_of_the_paper():
    """A and B are whole lines but for what is cut off; B follows A, or is of another document."""
    text = many()
    found = cut(text, 64, 0.1, 1, True, seed=3)
    document_of = np.repeat(np.arange(len(text)), np.diff(text.offsets[text.starts]))
    full = 0
    for (a, a_end, b, b_end), is_random in zip(found.spans, found.is_random, strict=True):
        assert a < a_end
        assert b < b_end
        length = a_end - a + b_end - b
        assert length <= 61
        one, other = ({*document_of[x:y]} for x, y in ((a, a_end), (b, b_end)))
        assert len(one) == len(other) == 1
        if is_random:
            assert one != other
        else:
            assert one == other
            assert b >= a_end
            if length < 61:  # nothing was cut off
                assert b == a_end
        full += length == 61
    assert found.lengths.max() == 64
    assert found.lengths is found.lengths  # computed once: a batch asks for each sequence
    assert full > len(found) / 3


def test_every_token_is_in_some_pair():
    """What a random B displaces is used again; only what is too long is cut off."""
    text = documents(*[[3] * 9 for _ in range(50)])
    found = cut(text, 30, 0.0, 1, True, seed=0)
    seen = collections.Counter()
    for a, a_end, b, b_end in found.spans:
        seen.update(range(a, a_end))
        seen.update(range(b, b_end))
    assert set(seen) == set(range(50 * 27))


def test_the_longer_part_is_cut_off_until_both_fit():
    """Lines of 10 and 50 tokens in a room of 30: 10 + 60, 50 + 10 and 50 + 50."""
    text = documents([10, 50], [10, 50])
    found = set()
    for a, a_end, b, b_end in cut(text, 33, 0.0, 50, True, seed=0).spans:
        found.add((a_end - a, b_end - b))
    assert found == {(10, 20), (20, 10), (15, 15)}


def test_a_share_of_the_documents_has_short_sequences():
    """A tenth of them gets a length between 2 and 61, all are the same."""
    text = documents(*[[1] * 61 for _ in range(2000)])
    lengths = cut(text, 64, 0.1, 1, False, seed=0).lengths
    assert (lengths <= 64).all()
    first = cut(text, 64, 0.0, 1, False, seed=0).lengths
    assert (first == 63).all()  # [CLS], 61 tokens, [SEP]
    shares = len(np.flatnonzero(lengths == 63)) / 2000
    assert shares == pytest.approx(0.9, abs=0.03)


def test_sequences_without_pairs_hold_as_many_lines_as_there_is_room_for():
    text = documents([5, 5, 5, 20, 3], [4])
    found = cut(text, 14, 0.0, 1, False, seed=0)
    assert found.spans[:, :2].tolist() == [[0, 10], [10, 15], [15, 27], [35, 38], [38, 42]]
    assert (found.spans[:, 2] == found.spans[:, 3]).all()
    assert found.is_random.tolist() == [-1] * 5
    assert found.lengths.tolist() == [12, 7, 14, 5, 6]


def test_the_cut_is_a_function_of_the_seed():
    text = many(count=20)
    found = [cut(text, 40, 0.1, 2, True, seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0].spans, found[1].spans)
    assert not np.array_equal(found[0].spans, found[2].spans)
    # The duplicates differ, too.
    once = cut(text, 40, 0.1, 1, True, 0)
    np.testing.assert_array_equal(found[0].spans[: len(once)], once.spans)
    rest = found[0].spans[len(once) :]
    assert len(rest) != len(once) or not np.array_equal(rest, once.spans)


def test_one_document_has_no_pairs():
    with pytest.raises(UserError, match="the training text is one document, and next-sentence"):
        cut(documents([3, 4]), 20, 0.1, 1, True, seed=0)
    assert len(cut(documents([3, 4]), 20, 0.1, 1, False, seed=0)) >= 1
