"""Folders with the vocabularies of M2M100 and NLLB, made here: nothing is downloaded."""

import json
import random

import pytest
import sentencepiece

from transformer.data import m2m_vocabulary
from transformer.data.m2m_vocabulary import M2MTokenizer
from transformer.data.tokenizers import Tokenizers, from_bytes
from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.system.errors import UserError

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "der schnelle braune Fuchs springt über den faulen Hund",
    "the dog sleeps and the fox sleeps",
    *map(chr, range(0x4E00, 0x4E00 + 290)),  # more pieces than a vocabulary has at least
] * 2
CODES = {"nllb": ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"], "m2m": ["de", "en", "zh"]}
SIZE = 400  # of the SentencePiece model
MASK = {"content": "<mask>", "lstrip": True}


def language_token(kind: str, code: str) -> str:
    return code if kind == "nllb" else f"__{code}__"


def write_folder(folder, kind, codes=None):
    """As the hub has it, without what a tokenizer does not need. Returns its vocab_size."""
    with (folder / "sentencepiece.bpe.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_writer=file, vocab_size=SIZE, model_type="bpe",
            minloglevel=3, character_coverage=1.0,
        )  # fmt: skip
    tokens = [language_token(kind, code) for code in codes or CODES[kind]]
    special = {"additional_special_tokens": tokens, "unk_token": "<unk>"}
    special |= {"mask_token": MASK} if kind == "nllb" else {}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    size = SIZE + 1
    if kind == "m2m":  # some pieces of its SentencePiece model have no id
        own = processor_of(folder)
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *map(own.id_to_piece, range(3, SIZE - 5))]
        ids = {piece: i for i, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(ids))
        size = len(pieces)
    return size + len(tokens) + {"nllb": 1 + 2, "m2m": 8}[kind]


def processor_of(folder):
    path = folder / "sentencepiece.bpe.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind, with its size of the vocabulary."""
    found = {kind: tmp_path_factory.mktemp(kind) for kind in CODES}
    return {kind: (folder, write_folder(folder, kind)) for kind, folder in found.items()}


@pytest.fixture(scope="module", params=["nllb", "m2m"])
def kind(request):
    return request.param


def pieces_of(tokenizer, text):
    return [tokenizer.pieces[i] for i in tokenizer.encode(text)]


# As Hugging Face's tokenizers take these texts apart; " " is between pieces.
BOTH = [
    ("", ""),
    (" \t\r\n", ""),
    ("  the  dog \t", "▁the ▁dog"),
    ("dog</s>fox <s><pad>", "▁dog </s> ▁fox <s> <pad>"),
    ("ﬁ½Ａ é", "▁f i <unk> ▁ <unk>"),
    ("x\x00\u200b🙂🙂y", "▁ x <unk> ▁ <unk> y"),
    ("日本語 over", "▁ <unk> ▁ ov er"),
    ("a\u2581b", "▁a ▁ b"),
    ("\ud800a", "▁a"),  # U+FFFD, which its normalisation takes for a space
    ("deu_Lat__", "▁d e u <unk> a t <unk>"),
]
OWN = {
    "nllb": [
        ("a__de__b deu_Latn c", "▁a <unk> d e <unk> b deu_Latn ▁ c"),
        ("x <mask> y", "▁ x <mask> ▁ y"),
    ],
    "m2m": [
        ("a__de__b deu_Latn c", "▁a __de__ ▁ b ▁d e u <unk> a t n ▁ c"),
        ("<mask>", "▁ <unk> m a s k <unk>"),
        ("会传", "▁ 会 <unk>"),  # without an id
    ],
}


def test_nasty_texts(folders, kind):
    folder, size = folders[kind]
    tokenizer, order = m2m_vocabulary.read(folder, size)
    for text, pieces in BOTH + OWN[kind]:
        assert " ".join(pieces_of(tokenizer, text)) == pieces, text
    # Ids there, recorded; those of special tokens differ from ours.
    assert order[tokenizer.encode("the dog <s><pad></s> fox")].tolist() == [9, 22, 0, 1, 2, 23]
    assert order[[PAD, BOS, EOS, UNK]].tolist() == [1, 0, 2, 3]
    assert sorted(order) == list(range(size)) == list(range(tokenizer.vocab_size))
    assert tokenizer.decode(tokenizer.encode("<s>the dog é fox<pad>")) == "the dog  fox"
    assert tokenizer.decode([*tokenizer.encode("the\u2028dog"), EOS, 7]) == "the dog"
    with pytest.raises(UserError, match=r"set tokenizer.sampling_alpha to 0"):
        tokenizer.sample_batch(["the"], 0.1, 0)


def test_languages(folders, kind, tmp_path):
    tokenizer, _ = m2m_vocabulary.read(*folders[kind])
    assert list(tokenizer.languages) == CODES[kind]
    first = {"nllb": 401, "m2m": 396}[kind]
    for number, code in enumerate(CODES[kind]):
        own = tokenizer.for_language(code)
        assert own.encode_batch(["the", ""], 1) == [[first + number, 9], [first + number]]
        assert own.decode(own.encode("the dog")) == "the dog"
        assert from_bytes(own.model_bytes).encode("dog") == own.encode("dog")
        assert own.for_language("") is tokenizer
        assert own.for_language(code) is own
    # A code of ISO 639 without a script, if it is of one language.
    assert tokenizer.for_language("deu").language == CODES[kind][0]
    wrong = {
        "nllb": {"deu_Lat": "did you mean 'deu_Latn'?", "zh": "choose one of zho_Hans, zho_Hant"},
        "m2m": {"dex": "did you mean 'de'?", "deu_Latn": "choose one of de, en, zh"},
    }
    for code, message in wrong[kind].items():
        with pytest.raises(UserError) as error:
            tokenizer.for_language(code, "data.source_language")
        expected = f"data.source_language is {code!r}, which {folders[kind][0]} does not have"
        assert str(error.value) == f"{expected}; {message}"
    # A work directory has one file, for any language.
    languages = {"source_language": "en", "target_language": "de"}
    both = Tokenizers(tokenizer, tokenizer).for_languages(languages)
    assert both.joint
    assert [x.language for x in both] == [tokenizer.for_language(x).language for x in ("en", "de")]
    both.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]
    assert Tokenizers.load(tmp_path).source.model_bytes == tokenizer.model_bytes


def test_trimming_keeps_the_pieces_of_a_text(folders, kind):
    full, _ = m2m_vocabulary.read(*folders[kind])
    code = CODES[kind][1]
    token = language_token(kind, code)
    texts = ["the dog sleeps", f"the é <s> 传 {token}", "x<s>lazy"]
    small, kept = full.trimmed([code], texts)
    assert list(small.languages) == [code]
    for wrong in ("de", f"{code}x"):  # even if there is only one
        with pytest.raises(UserError, match=rf"is '{wrong}', which .* does not have; (did|choose)"):
            small.for_language(wrong)
    assert small.vocab_size == len(kept) < full.vocab_size - 50
    assert [full.pieces[i] for i in kept] == small.pieces
    assert from_bytes(small.model_bytes).pieces == small.pieces
    for text in texts:
        assert kept[small.for_language(code).encode(text)].tolist() == full.for_language(
            code
        ).encode(text)
    # Other words have the parts that are left; all characters are.
    assert pieces_of(full, "fox sleeps") == ["▁fox", "▁sleeps"]
    *parts, last = pieces_of(small, "fox sleeps")
    assert (len(parts) > 1, "".join(parts), last) == (True, "▁fox", "▁sleeps")
    assert small.decode(small.encode("brown fox 会")) == "brown fox 会"
    gone = language_token(kind, CODES[kind][0])
    assert full.languages[CODES[kind][0]] in full.encode(gone)
    assert gone not in small.pieces
    assert small.encode(gone)[-1] not in small.languages.values()


def spoil(folder, name, change):
    path = folder / name
    if change is None:
        path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        found = json.loads(path.read_text()) if path.exists() else {}
        found = change(found) if callable(change) else found | change
        path.write_text(json.dumps(found))


MAP, MODEL, ADDED = "special_tokens_map.json", "sentencepiece.bpe.model", "added_tokens.json"


@pytest.mark.parametrize(
    ("kind", "name", "change", "more", "message"),
    [
        ("nllb", MODEL, None, 0, f"cannot read .*{MODEL}: No such file"),
        ("nllb", MODEL, b"", 0, f"{MODEL} is not a SentencePiece model; take the file"),
        ("nllb", MAP, None, 0, "names no languages; they are in the tokenizer.json"),
        ("nllb", MAP, {"additional_special_tokens": 3}, 0, "cannot be used .*it is 3; expected"),
        ("nllb", MAP, {"additional_special_tokens": ["ab"]}, 0, "adds the token 'ab', which ours"),
        ("nllb", MAP, {"additional_special_tokens": ["a_\ud800"]}, 2, "which is no text"),
        ("nllb", MAP, b"[", 0, f"{MAP} cannot be used"),
        ("nllb", ADDED, {"eng_Latn": 401, "deu_Latn": 401}, 2, "eng_Latn and deu_Latn one id"),
        ("nllb", ADDED, {"eng_Latn": 7}, 5, "gives ▁s and eng_Latn one id"),
        ("nllb", ADDED, {"eng_Latn": 401, "<s>": 5}, 5, "gives <s> the ids 0 and 5"),
        ("nllb", "vocab.json", {"<s>": 0}, 0, "vocab.json does not begin with <s> <pad>"),
        ("m2m", "vocab.json", None, 0, "names languages as M2M100 does, and has no vocab.json"),
        ("m2m", "vocab.json", {"dog": 3}, 0, "vocab.json gives other ids; expected ids below 397"),
        ("m2m", MAP, {}, 1, "has 399 tokens, with ids up to 398, which do not fit"),
        ("m2m", MAP, {}, -9, "which do not fit a vocab_size of 398 in its config.json"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_fit(folders, tmp_path, kind, name, change, more, message):
    folder, size = folders[kind]
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path, name, change)
    with pytest.raises(UserError, match=message) as error:
        m2m_vocabulary.read(tmp_path, size + more)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_vocabulary():
    good = json.loads(m2m_vocabulary.to_bytes(["<pad>", "<s>", "</s>", "<unk>"], ["<s>"], b"x"))
    for change in ({"pieces": ["<s>"]}, {"special": ["a_b"]}, {"m2m_language": "x"}, {}):
        with pytest.raises(UserError, match="a file is not a vocabulary of M2M100 or NLLB; give"):
            M2MTokenizer(json.dumps(good | change).encode(), "a file")


# --- Hugging Face's tokenizers ------------------------------------------------------------

PARTS = [
    *("the dog", "der Hund", " ", "  ", "\t", "\n", "\r\n", "\u3000", "\xa0", "\u200b", "\ufeff"),
    *("\x00", "\x07", "\x1f", "\x7f", "🙂", "日本語", "один", "ﬁ", "½", "Ａ", "ｶﾞ", "é", "ß"),
    *("<s>", "</s>", "<pad>", "<mask>", "__de__", "__en__", "deu_Latn", "eng_Latn", " deu_Latn "),
    *("deu_Lat", "_Latn", "<", "_", "__", "madeupword0", "123", "...", "\u0e01\u0e33", "\u202e"),
    *("\ufffd", "\u2028", "x", "'", '"', "&amp;", "\U000f0000"),
]
# The one for NLLB is no SentencePiece model there, and differs in these.
NOT_IN_NLLB = ["<unk>", "e\u0301", "\u200d", "\u2581", "\x85"]


def test_ids_and_texts_are_those_of_hugging_face(kind, tmp_path):
    pytest.importorskip("transformers", reason=".[bert-test]")
    from transformers import M2M100Tokenizer, NllbTokenizer
    from transformers.models.m2m_100 import tokenization_m2m_100 as m2m
    from transformers.models.nllb import tokenization_nllb as nllb

    codes = {"m2m": m2m.FAIRSEQ_LANGUAGE_CODES["m2m100"], "nllb": nllb.FAIRSEQ_LANGUAGE_CODES}[kind]
    size, parts = write_folder(tmp_path, kind, codes), list(PARTS)
    if kind == "m2m":
        theirs = M2M100Tokenizer.from_pretrained(tmp_path)
        parts += NOT_IN_NLLB
    else:
        # Theirs reads languages from tokenizer.json.
        NllbTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
        path = tmp_path / "tokenizer.json"
        content = json.loads(path.read_text())
        *added, mask = content["added_tokens"]
        added += [added[0] | {"id": SIZE + 1 + i, "content": x} for i, x in enumerate(codes)]
        content["added_tokens"] = [*added, mask | {"id": SIZE + 1 + len(codes)}]
        path.write_text(json.dumps(content))
        theirs = NllbTokenizer.from_pretrained(tmp_path)
    ours, order = m2m_vocabulary.read(tmp_path, size)
    assert list(ours.languages) == list(codes)
    for code in codes:
        theirs.src_lang = theirs.tgt_lang = code
        found = order[[*ours.for_language(code).encode("der Hund"), EOS]].tolist()
        assert found == theirs("der Hund").input_ids == theirs(text_target="der Hund").input_ids
    space, specials = theirs.convert_tokens_to_ids("▁"), {*theirs.added_tokens_decoder} - {3}
    rng = random.Random(0)
    for text in [
        "",
        *parts,
        *("".join(rng.choices(parts, k=rng.randrange(9))) for _ in range(1000)),
    ]:
        expected = theirs(text).input_ids[1:]
        if kind == "nllb":  # theirs keeps a space before a special token, and at the end
            pairs = zip(expected, [*expected[1:], EOS], strict=True)
            expected = [i for i, then in pairs if i != space or then not in specials]
        ids = ours.encode(text)
        assert order[[*ids, EOS]].tolist() == expected, repr(text)
        decoded = theirs.decode(expected, skip_special_tokens=True).strip()
        assert ours.decode(i for i in ids if i != EOS) == decoded
