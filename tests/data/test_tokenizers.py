import functools
import hashlib
import io
import random

import pytest
import sentencepiece

from transformer.data.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from transformer.data.tokenizers import TokenizerConfig, Tokenizers, get_tokenizers, load
from transformer.data.vocabulary import BOS, EOS, PAD, UNK, Tokenizer
from transformer.system.errors import UserError
from transformer.system.files import write_atomically

SENTENCES = [
    "The dog sees the cat.",
    "The cat sees the dog.",
    "Der Hund sieht die Katze.",
    "Die Katze sieht den Hund.",
    "The farmer buys a horse because the old one sleeps all day.",
    "Der Bauer kauft ein Pferd, weil das alte den ganzen Tag schläft.",
    "Children sleep; farmers work.",
    "Kinder schlafen; Bauern arbeiten.",
] * 3


@functools.cache
def small_tokenizer(model_type: str = "bpe") -> Tokenizer:
    return train_sentencepiece(SENTENCES, vocab_size=310, model_type=model_type)


def piece(i: int) -> str:
    processor = sentencepiece.SentencePieceProcessor(model_proto=small_tokenizer().model_bytes)
    return processor.id_to_piece(i)


class Pairs:
    """A stand-in for a PairSource."""

    def __init__(self, pairs):
        self.pairs, self.fingerprint = pairs, repr(pairs)
        self.asked_for = []

    def __len__(self):
        return len(self.pairs)

    def sample(self, size):
        self.asked_for.append(size)
        return self.pairs[:size]


PAIRS = Pairs(list(zip(SENTENCES[0::2], SENTENCES[1::2], strict=True)))


def make_config(**changes) -> TokenizerConfig:
    fields = {
        "model_type": "bpe",
        "vocab_size": 310,
        "joint": True,
        "sample_size": 1000,
        "sampling_alpha": 0.0,
        "num_samples": 1,
        "source_model": None,
        "target_model": None,
    }
    return TokenizerConfig(**fields | changes)


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# --- Ids ----------------------------------------------------------------------------------


def test_special_ids_and_bytes_come_first():
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert [piece(i) for i in (0, 1, 2, 3, 4, 259)] == [
        "<pad>", "<s>", "</s>", "<unk>", "<0x00>", "<0xFF>",
    ]  # fmt: skip
    assert small_tokenizer().vocab_size == 310


def test_encode_gives_pieces_and_bytes_and_adds_neither_bos_nor_eos():
    encode = small_tokenizer().encode
    assert "".join(map(piece, encode("The dog"))) == "\u2581The\u2581dog"
    assert encode("") == []
    space, *rest = encode("\u00e9")  # not in the vocabulary; UTF-8: C3 A9
    assert piece(space) == "\u2581"
    assert rest == [4 + 0xC3, 4 + 0xA9]
    # A lone surrogate becomes the replacement character.
    assert encode("a\ud800b\udfff") == encode("a\ufffdb\ufffd")


def test_decode_stops_at_the_first_eos_and_skips_padding_and_bos():
    tokenizer = small_tokenizer()
    dog, cat = tokenizer.encode("dog"), tokenizer.encode("cat")
    assert tokenizer.decode([BOS, *dog, PAD, *cat, EOS, *dog, PAD]) == "dog cat"
    assert tokenizer.decode([EOS, *dog]) == ""
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "word"])
def test_encode_batch_is_encode_of_each(model_type):
    tokenizer = small_tokenizer(model_type)
    texts = [*SENTENCES[:4], "", " a \u2581 b", "\ud800"]
    expected = [tokenizer.encode(text) for text in texts]
    for num_threads in (-1, 2):
        assert tokenizer.encode_batch(texts, num_threads) == expected
        assert tokenizer.encode_batch([], num_threads) == []


def test_sampling():
    tokenizer = small_tokenizer()
    texts = [*SENTENCES[:8], "", "  two \u00e9 ", "\ud800", " a \u2581 b"]
    plain = tokenizer.encode_batch(texts, 1)
    ids = tokenizer.sample_batch(texts, 0.3, seed=3)
    assert tokenizer.sample_batch(texts, 0.3, seed=3) == ids
    assert tokenizer.sample_batch(texts, 0.3, seed=4) != ids
    assert sum(map(len, ids)) > sum(map(len, plain))
    assert [tokenizer.decode(i) for i in ids] == [tokenizer.decode(i) for i in plain]
    assert tokenizer.sample_batch(texts, 0.0, seed=3) == plain


def model_of_others(**changes) -> SentencePieceTokenizer:
    """A model that somebody has trained with other options of SentencePiece."""
    options = {"model_type": "bpe", "vocab_size": 60, "minloglevel": 2}
    options |= {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS, "unk_id": UNK} | changes
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, **options
    )
    return SentencePieceTokenizer(model.getvalue(), "their.model")


@pytest.mark.parametrize(
    "options",
    [
        {},  # without bytes
        {"vocab_size": 310, "byte_fallback": True, "normalization_rule_name": "nfkc"},
        {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    ],
)
def test_sampling_with_the_models_of_others(options):
    tokenizer = model_of_others(**options)
    texts = [*SENTENCES[:8], "\uff34he  \u00e9 ", "the \u65e5\u672c\u8a9e", " a\u2581b"]
    assert tokenizer.sample_batch(texts, 0.0, seed=3) == tokenizer.encode_batch(texts, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"model_type": "char", "vocab_size": 35},
        {"user_defined_symbols": ["<sep>"]},
        {"split_by_whitespace": False, "vocab_size": 120},
        {"treat_whitespace_as_suffix": True},
    ],
)
def test_what_is_not_made_of_merges_within_words(options):
    message = r"^tokenizer\.sampling_alpha leaves out merges, but their\.model is not a BPE model"
    with pytest.raises(UserError, match=message):
        model_of_others(**options).sample_batch(["a"], 0.1, seed=3)


def test_too_long_a_word_is_not_sampled():
    words = "sleep" * 99, "sleep" * 101
    plain = [small_tokenizer().encode(word) for word in words]
    samples = small_tokenizer().sample_batch(words, 0.9, seed=3)
    assert [sample == ids for sample, ids in zip(samples, plain)] == [False, True]


# --- Round trip ---------------------------------------------------------------------------

TRAPS = [
    "",
    " ",
    "  two  spaces  ",
    "\ttab\t",
    "a\0b",
    "a\u200db \u200f\u05e9\u05dc\u05d5\u05dd",  # zero-width joiner, right to left
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # one emoji, three people
    "\u2581",
    "\u2581 a\u2581\u2581b \u2581 ",
    "\u2585",  # SentencePiece's own mark for unknown characters while it trains
    "\u2581\U000f0000\U000f0001",  # those that stand in for U+2581
    "e\u0301 \u00e9 \ufb01 \u00bd \u3000",  # what normalisation would change
    "\u2028 \x85 \x0c \x0b \x1c",  # line ends for str.splitlines, not for us
    "\ufeffbom",
    "<s> </s> <pad> <unk> <0x41>",
    "\ufffd\ufffe\uffff\U0010ffff",
    "a" * 100_000,
]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("text", TRAPS, ids=lambda text: ascii(text[:10]))
def test_round_trip(text, model_type):
    tokenizer = small_tokenizer(model_type)
    ids = tokenizer.encode(text)
    assert UNK not in ids
    assert tokenizer.decode([*ids, EOS]) == text


# --- Whole words --------------------------------------------------------------------------

DIGITS = ["1 2 3 4", "4 + 2", "4 2 x\u00e9y", "2"]  # 2: four times; 4: three; the others: once


def test_words_by_frequency():
    tokenizer = train_sentencepiece(DIGITS, vocab_size=99, model_type="word")
    assert tokenizer.vocab_size == 4 + 6  # no more than there are
    assert tokenizer.encode("2 4") == [UNK + 1, UNK + 2]
    assert sorted(tokenizer.encode("+ 1 3 x\u00e9y")) == [6, 7, 8, 9]
    fewer = train_sentencepiece(DIGITS, vocab_size=6, model_type="word")
    assert fewer.vocab_size == 6
    assert fewer.encode("1 2 3 4") == [UNK, UNK + 1, UNK, UNK + 2]


def test_words_round_trip_exactly():
    tokenizer = train_sentencepiece(DIGITS, vocab_size=99, model_type="word")
    for text in [*DIGITS, "x\u00e9y 1 1 1", ""]:
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.split())
        assert tokenizer.decode([*ids, EOS]) == text


@pytest.mark.parametrize("word", ["5", "12", "x\u00e9", "X\u00c9Y", "<s>", "x\u2581y"])
def test_other_words_are_unknown_as_a_whole(word):
    tokenizer = train_sentencepiece(DIGITS, vocab_size=99, model_type="word")
    assert tokenizer.encode(f"2 {word} 4") == [UNK + 1, UNK, UNK + 2]
    assert tokenizer.decode([UNK + 1, UNK, UNK + 2]) == "2 <unk> 4"


def test_a_saved_vocabulary_of_words(tmp_path):
    config = make_config(model_type="word", vocab_size=5)
    tokenizers = get_tokenizers(tmp_path, config, Pairs([("a b", "b c"), ("b", "b")]))
    assert tokenizers.vocab_sizes == (5, 5)
    tokenizers.save(tmp_path)
    assert Tokenizers.load(tmp_path).source.encode("a b c") == [UNK, UNK + 1, UNK]
    with pytest.raises(UserError, match="is not a BPE model"):
        tokenizers.source.sample_batch(["a b"], 0.1, seed=0)


# --- Training -----------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_sentences_give_the_same_bytes(model_type):
    again = train_sentencepiece(iter(SENTENCES), vocab_size=310, model_type=model_type)
    assert again.model_bytes == small_tokenizer(model_type).model_bytes
    assert again.sha256 == hashlib.sha256(again.model_bytes).hexdigest()


@pytest.mark.parametrize(("model_type", "size"), [("bpe", 310), ("unigram", 310), ("word", 40)])
def test_a_tag_is_one_piece(model_type, size):
    config = make_config(vocab_size=size, model_type=model_type)
    tagged = Pairs([(f"<bt> {source}", target) for source, target in PAIRS.pairs])
    tokenizer = get_tokenizers("nowhere", config, tagged, ["<bt>"]).source
    ids = tokenizer.encode("<bt> The dog")
    assert [tokenizer.pieces[i].lstrip("▁") for i in ids].count("<bt>") == 1
    assert tokenizer.decode(ids) == "<bt> The dog"
    alone = get_tokenizers("nowhere", config, tagged).source
    assert "<bt>" not in alone.pieces


def test_training_reads_long_lines():
    words = ["".join(random.Random(i).sample("abcdefgh", 8)) for i in range(500)]
    line = " ".join(words * 5)
    assert len(line) > 20_000
    tokenizer = train_sentencepiece([line, "abcdefgh"], vocab_size=500, model_type="bpe")
    assert len(tokenizer.encode(line)) < len(line) / 2


def test_rare_characters_are_left_to_the_bytes():
    sentences = ["abcd"] * 1000 + ["\u017c"]
    kwargs = {"vocab_size": 266, "model_type": "bpe"}
    some = train_sentencepiece(sentences, character_coverage=0.9995, **kwargs)
    every = train_sentencepiece(sentences, **kwargs)
    # The space before it, and two bytes or one piece.
    assert len(some.encode("\u017c")) == 3
    assert len(every.encode("\u017c")) == 2


@pytest.mark.parametrize(
    ("sentences", "vocab_size", "message"),
    [
        # 4 special, 256 bytes, h e l o w r d and the space
        (
            ["hello world"],
            264,
            "tokenizer.vocab_size is 264, but the special tokens, the bytes and the characters of "
            "the training text are 268 pieces already; set tokenizer.vocab_size to 268 or more",
        ),
        ([], 300, "no text to train the tokenizer on: every sentence is empty"),
        (["", ""], 300, "no text to train the tokenizer on: every sentence is empty"),
        (SENTENCES, -1, "SentencePiece cannot train the tokenizer: "),
    ],
)
def test_other_training_errors(sentences, vocab_size, message):
    with pytest.raises(UserError) as error:
        train_sentencepiece(sentences, vocab_size=vocab_size, model_type="bpe")
    assert one_line(error).startswith(message)


# --- Files --------------------------------------------------------------------------------


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "a.model"
    refused = f"{path} is not a SentencePiece model; give a .model file written by SentencePiece"
    for content, message in (
        (None, f"cannot read the tokenizer {path}: No such file or directory"),
        *((x, refused) for x in (b"", b"vocabulary: 1\n", small_tokenizer().model_bytes[:1000])),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError) as error:
            load(path)
        assert one_line(error) == message
    with pytest.raises(UserError, match=r"expected tokenizer\.model, or tokenizer\.source\.model"):
        Tokenizers.load(tmp_path)


def test_other_special_ids_are_refused():
    with pytest.raises(UserError) as error:
        model_of_others(pad_id=-1, bos_id=1, eos_id=2, unk_id=0)  # SentencePiece's defaults
    assert one_line(error) == (
        "their.model has pad_id=-1 bos_id=1 eos_id=2; expected pad_id=0 bos_id=1 eos_id=2: train "
        "it again with --pad_id=0 --bos_id=1 --eos_id=2 --unk_id=3"
    )


def test_models_of_others_can_be_used():
    tokenizer = model_of_others()  # without bytes
    assert tokenizer.decode(tokenizer.encode("the\u2581dog")) == "the dog"
    assert UNK in tokenizer.encode("\u017c")
    tokenizer = model_of_others(vocab_size=320, unk_id=5, byte_fallback=True)
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a\u2581b"


# --- One vocabulary or two ----------------------------------------------------------------


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_joint_tokenizers(tmp_path):
    pairs, config = Pairs(PAIRS.pairs), make_config(sample_size=3, vocab_size=300)
    tokenizers = get_tokenizers(tmp_path, config, pairs)
    assert names(tmp_path) == []
    assert tokenizers.source is tokenizers.target
    tokenizers.save(tmp_path)
    assert names(tmp_path) == ["tokenizer.model"]
    again = get_tokenizers(tmp_path, config, pairs)
    assert again.joint
    assert again.source.sha256 == tokenizers.source.sha256
    assert pairs.asked_for == [3]  # trained once, on a sample


def test_separate_tokenizers(tmp_path):
    pairs = Pairs([("abcdefgh", "stuvwxyz"), ("abcd efgh", "stuv wxyz")])
    config = make_config(joint=False, vocab_size=275)
    tokenizers = get_tokenizers(tmp_path, config, pairs)
    tokenizers.save(tmp_path)
    assert names(tmp_path) == ["tokenizer.source.model", "tokenizer.target.model"]
    assert len(tokenizers.source.encode("abcd")) < len(tokenizers.target.encode("abcd"))
    assert len(tokenizers.source.encode("stuv")) > len(tokenizers.target.encode("stuv"))
    loaded = Tokenizers.load(tmp_path)
    assert not loaded.joint
    assert [t.sha256 for t in loaded] == [t.sha256 for t in tokenizers]
    # A run that was killed while it saved them makes both again.
    (tmp_path / "tokenizer.target.model").unlink()
    again = get_tokenizers(tmp_path, config, pairs)
    assert [t.sha256 for t in again] == [t.sha256 for t in tokenizers]


def test_given_models_are_used_and_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_atomically(tmp_path / "a.model", small_tokenizer("bpe").model_bytes)
    write_atomically(tmp_path / "b.model", small_tokenizer("unigram").model_bytes)
    bpe, unigram = small_tokenizer("bpe").sha256, small_tokenizer("unigram").sha256

    # vocab_size is not used: the models are 310 pieces.
    config = make_config(source_model="~/a.model", vocab_size=1000)
    joint = get_tokenizers(tmp_path / "joint", config, PAIRS)
    assert [t.sha256 for t in joint] == [bpe, bpe]
    joint.save(tmp_path / "joint")
    (tmp_path / "a.model").rename(tmp_path / "c.model")  # the copy is enough
    assert [t.sha256 for t in get_tokenizers(tmp_path / "joint", config, PAIRS)] == [bpe, bpe]

    config = make_config(joint=False, source_model="~/c.model", target_model="~/b.model")
    two = get_tokenizers(tmp_path / "two", config, PAIRS)
    assert [t.sha256 for t in two] == [bpe, unigram]


# --- What a configuration may say ---------------------------------------------------------


def test_sampling_that_is_refused():
    alpha, no_merges = {"sampling_alpha": 0.1}, "model has no merges to leave out; set tokenizer."
    for changes, message in (
        ({"sampling_alpha": 1.0}, "tokenizer.sampling_alpha is 1.0; it must be at least 0 and be"),
        ({"num_samples": 0}, "tokenizer.num_samples is 0; it must be at least 1"),
        ({"num_samples": 2}, "tokenizer.num_samples is 2, but without sampling all would be"),
        (alpha | {"model_type": "unigram"}, f"a unigram {no_merges}model_type"),
        (
            alpha | {"target_model_type": "word", "joint": False},
            f"a word {no_merges}target_model_type",
        ),
    ):
        with pytest.raises(UserError) as error:
            make_config(**changes)
        assert message in one_line(error)
    # The type is of a model to be trained; the given one may be of another.
    make_config(model_type="unigram", source_model="~/a.model", sampling_alpha=0.1)
