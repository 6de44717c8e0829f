import json

import pytest
import tokenizers
from small_bert import PIECES, WORDS, write_vocabulary

from transformer.data.wordpiece import SPECIAL, WordPiece, WordPieceConfig, train_wordpiece
from transformer.system.errors import UserError

LINES = ["The quick brown fox, the slow one.", "Über alles: the quickest foxes!", "un known"] * 3


@pytest.fixture
def tokenizer():
    return WordPiece([*PIECES, *WORDS], lowercase=True)


def pieces(tokenizer, text):
    return [tokenizer.pieces[i] for i in tokenizer.encode_batch([text])[0]]


def test_the_longest_piece_comes_first(tokenizer):
    assert pieces(tokenizer, "Fourteen, UNKNOWN") == ["four", "##teen", ",", *UNKNOWN]
    assert pieces(tokenizer, "ünknöwn") == UNKNOWN  # accents go with capitals
    assert pieces(tokenizer, "one 東 two") == ["one", "[UNK]", "two"]
    assert tokenizer.encode_batch(["", "  "]) == [[], []]


UNKNOWN = ["un", "##kno", "##w", "##n"]


def test_special_tokens_cannot_be_written_in_text(tokenizer):
    found = tokenizer.encode_batch(["[MASK] [SEP]"])[0]
    assert not {tokenizer.mask, tokenizer.sep} & set(found)


def test_text_of_ids(tokenizer):
    ids = [tokenizer.cls, *tokenizer.encode_batch(["fourteen, unknown"])[0], tokenizer.sep]
    assert tokenizer.decode(ids) == "[CLS] fourteen , unknown [SEP]"
    assert tokenizer.is_continuation_V[tokenizer.ids["##teen"]]
    assert not tokenizer.is_continuation_V[tokenizer.ids["four"]]


def test_a_lone_surrogate_is_read_as_a_question_mark(tokenizer):
    assert tokenizer.encode_batch(["one \ud800"])[0] == [tokenizer.ids["one"], tokenizer.unk]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_files_are_read_as_they_were_written(name, lowercase, tmp_path):
    tokenizer = WordPiece([*PIECES, *WORDS], lowercase)
    tokenizer.save(tmp_path)
    found = WordPiece.read(tmp_path / name)
    assert (found.pieces, found.lowercase) == (tokenizer.pieces, lowercase)
    assert found.sha256 == tokenizer.sha256 == WordPiece.load(tmp_path).sha256
    assert found.sha256 != WordPiece(found.pieces, not lowercase).sha256


@pytest.mark.parametrize(("piece", "lowercase"), [("One", False), ("ones", True)])
def test_a_vocabulary_with_capitals_is_not_lowercased(piece, lowercase, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "[unused0]", piece]) + "\n")
    assert WordPiece.load(tmp_path).lowercase == lowercase


def test_the_library_reads_our_tokenizer_json(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = theirs.encode("one, two [MASK]", "three")
    own = [tokenizer.encode_batch([text])[0] for text in ("one, two", "three")]
    first = [tokenizer.cls, *own[0], tokenizer.mask, tokenizer.sep]
    assert found.ids == [*first, *own[1], tokenizer.sep]
    assert found.type_ids == [0] * len(first) + [1] * (len(own[1]) + 1)
    assert theirs.decode(found.ids) == "one, two three"


def test_the_same_text_gives_the_same_vocabulary():
    """The library alone breaks ties in another way each time."""
    config = WordPieceConfig(vocab_size=75, lowercase=True, source_model=None)
    found = [train_wordpiece(lambda: LINES, config) for _ in range(5)]
    assert len({x.sha256 for x in found}) == 1
    first = found[0]
    assert first.vocab_size == 75
    assert tuple(first.pieces[:5]) == SPECIAL
    assert "the" in first.pieces
    assert first.unk not in first.encode_batch([" ".join(LINES)])[0]
    assert [first.encode_batch([line])[0] for line in LINES] == first.encode_batch(LINES)


def test_sizes_that_the_text_does_not_allow():
    for size, message in ((20, "of the text are 49"), (5000, r"gives only \d+ pieces")):
        config = WordPieceConfig(vocab_size=size, lowercase=True, source_model=None)
        with pytest.raises(UserError, match=rf"tokenizer\.vocab_size is {size}, but .*{message}"):
            train_wordpiece(lambda: LINES, config)


def test_vocabularies_that_are_not_of_bert(tmp_path):
    def refused(message, name="vocab.txt"):
        with pytest.raises(UserError, match=message):
            WordPiece.read(tmp_path / name)

    path = tmp_path / "vocab.txt"
    refused("cannot read the vocabulary")
    path.write_text("\n".join([*PIECES, "one", "one"]))
    refused("vocab.txt holds 'one' twice")
    path.write_text("\n".join(PIECES[:4]))
    refused(r"has no \[MASK\]")
    path.write_text("\n".join(["one", *PIECES]))
    refused(r"has \[PAD\] in line 2; expected in line 1")
    path.write_bytes(b"\xff")
    refused("is damaged")
    with pytest.raises(UserError, match=r"expected vocab.txt or tokenizer.json"):
        WordPiece.load(tmp_path / "nowhere")

    write_vocabulary(tmp_path)
    path = tmp_path / "tokenizer.json"
    good = json.loads(path.read_text())
    for change, message in (
        ({"model": good["model"] | {"type": "BPE"}}, "tokenizer.json is damaged"),
        ({"normalizer": None}, "is no tokenizer of BERT's"),
        ({"normalizer": good["normalizer"] | {"strip_accents": False}}, "strip_accents False"),
        ({"model": good["model"] | {"vocab": {"[PAD]": 0, "x": 2}}}, "ids other than 0 to 1"),
    ):
        path.write_text(json.dumps(good | change))
        refused(message, "tokenizer.json")
