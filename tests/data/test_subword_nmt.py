"""subword-nmt merges: known segmentations, the published file, ids, damage."""

import json
from pathlib import Path

import pytest

from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.tokenizers import TokenizerConfig, from_bytes, get_tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD, UNK
from transformer.system.errors import UserError

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"
# The example of Sennrich et al. 2016, Algorithm 1.
WORDS = [
    "low low low low low",
    "lower lower newest newest newest",
    "newest newest newest widest widest widest",
]
NO_MODELS = [
    b"{}",
    b'{"merges": 3, "symbols": []}',
    b'{"merges": ["a"], "symbols": []}',
    b'{"merges": ["a b"], "symbols": 7}',
    b'{"\xff": 1}',
    b'{"merges": ["a "], "symbols": []}',
    b'{"merges": ["a b\\nc"], "symbols": []}',
    b'{"merges": ["a b"], "symbols": [1]}',
    b'{"merges": ["a b"], "symbols": ["a\\nb"]}',
    b'{"merges": ' + 100_000 * b"[",
]


def symbols_of(tokenizer, text):
    symbols = ["<unk>", *json.loads(tokenizer.model_bytes)["symbols"]]
    return [symbols[i - UNK] for i in tokenizer.encode(text)]


def test_the_example_of_the_paper():
    tokenizer = train_subword_nmt(WORDS, num_merges=10)
    # "e s" and "s t</w>" both occur 9 times; the later in the alphabet comes first.
    merges = json.loads(tokenizer.model_bytes)["merges"]
    assert merges[:4] == ["s t</w>", "e st</w>", "l o", "w est</w>"]
    assert symbols_of(tokenizer, "low newest lower") == ["low", "newest", "lo@@", "w@@", "e@@", "r"]
    # A symbol that no word of the training text ends up with is not in the vocabulary.
    assert symbols_of(tokenizer, "lowest") == ["lo@@", "<unk>"]
    assert tokenizer.vocab_size == 4 + len(json.loads(tokenizer.model_bytes)["symbols"])


def test_the_most_frequent_symbols_come_first():
    tokenizer = train_subword_nmt(["b ab b", "c b ab ab", "c"], num_merges=9)
    assert json.loads(tokenizer.model_bytes) == {"merges": ["a b</w>"], "symbols": ["ab", "b", "c"]}
    assert tokenizer.encode("ab c") == [UNK + 1, UNK + 3]


def test_decoding_gives_the_text_back():
    tokenizer = train_subword_nmt(WORDS, num_merges=5)
    for text in ("low lower newest widest", "wier", "", "wew"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode("newest low")
    assert tokenizer.decode([BOS, *ids, EOS, *ids, PAD]) == "newest low"
    assert tokenizer.decode([PAD, *ids]) == "newest low"
    assert tokenizer.decode(tokenizer.encode("wier")[:-1]) == "wie"  # within a word


def test_what_was_never_seen_is_unknown():
    tokenizer = train_subword_nmt(WORDS, num_merges=5)
    ids = tokenizer.encode("low x newest")
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids) == "low <unk> newest"
    # "r" is known at the end of a word alone.
    assert UNK in tokenizer.encode("rl")


def test_sampling():
    tokenizer = train_subword_nmt([*WORDS, "lx o lo lo"], num_merges=100)
    texts = ["low  newest", "lower \ud800", "", *4000 * ["lo"]]
    plain = tokenizer.encode_batch(texts, 1)
    ids = tokenizer.sample_batch(texts, 0.25, seed=3)
    assert ids == tokenizer.sample_batch(texts, 0.25, seed=3)
    assert ids != tokenizer.sample_batch(texts, 0.25, seed=4)
    assert [tokenizer.decode(i) for i in ids[:3]] == ["low newest", "lower <unk>", ""]
    # One merge makes the word "lo"; it is left out a quarter of the time, give or take 27.
    assert 900 < sum(len(i) == 2 for i in ids[3:]) < 1100
    assert tokenizer.sample_batch(texts, 0.0, seed=3) == plain


def test_sampling_makes_no_word_unknown():
    tokenizer = train_subword_nmt(["ab ab ac", "c"], num_merges=9)
    assert json.loads(tokenizer.model_bytes)["symbols"] == ["ab", "c", "a@@"]
    texts = 100 * ["ab"]  # "b" alone is unknown
    assert tokenizer.sample_batch(texts, 0.5, 3) == tokenizer.encode_batch(texts, 1)


def test_odd_text_is_one_line():
    tokenizer = train_subword_nmt([*WORDS, "a\rb", "\u00a0 \u2028 \t", "  "], num_merges=5)
    assert "\n" not in tokenizer.decode(range(tokenizer.vocab_size))
    assert tokenizer.decode(tokenizer.encode("low\rlow  \u2028")) == "low low \u2028"
    assert tokenizer.decode(tokenizer.encode("low \ud800")) == "low <unk>"


def test_training_is_repeatable():
    one, other = (train_subword_nmt(words, num_merges=4) for words in (WORDS, list(WORDS)))
    assert one.model_bytes == other.model_bytes
    assert one.sha256 == other.sha256
    assert one.sha256 != train_subword_nmt(WORDS, num_merges=3).sha256


@pytest.mark.parametrize("words", [[], ["", "  "]])
def test_no_words(words):
    with pytest.raises(UserError, match="no text to train the tokenizer on"):
        train_subword_nmt(words, num_merges=4)
    with pytest.raises(UserError, match="no pair of characters occurs twice"):
        train_subword_nmt([*words, "a b c", "b a"], num_merges=4)


@pytest.mark.parametrize("model", NO_MODELS)
def test_other_bytes_are_refused(model):
    with pytest.raises(UserError, match=r"^run/tokenizer\.model is not a subword-nmt tokenizer"):
        from_bytes(model, "run/tokenizer.model")


class Pairs:
    fingerprint = "of words"

    def __len__(self):
        return len(WORDS)

    def sample(self, size):
        return [(words, words.upper()) for words in WORDS][:size]


@pytest.mark.parametrize("joint", [True, False])
def test_a_configured_one(tmp_path, joint):
    config = TokenizerConfig("subword-nmt", 10, joint, 100, 0.0, 1, None, None)
    tokenizers = get_tokenizers(tmp_path, config, Pairs())
    assert tokenizers.joint == joint
    assert UNK not in tokenizers.source.encode("newest")
    assert (UNK in tokenizers.source.encode("NEWEST")) == (not joint)
    tokenizers.save(tmp_path)
    again = get_tokenizers(tmp_path, config, Pairs())
    assert [t.sha256 for t in again] == [t.sha256 for t in tokenizers]
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size is 0"):
        TokenizerConfig("subword-nmt", 0, joint, 100, 0.0, 1, None, None)


@pytest.mark.slow
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/data/multi30k")
def test_the_merges_of_the_published_run():
    """Those that the 41.02 BLEU of configs/multi30k_tiny.py were reached with."""
    lines = []
    for language in ("en", "de"):
        path = MULTI30K / "tok" / f"train.lc.norm.tok.{language}"
        lines += path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(lines) == 58_000
    tokenizer = train_subword_nmt(lines, num_merges=1_000)  # the first of 10,000
    published = (MULTI30K / "bpe10k.codes").read_text(encoding="utf-8").splitlines()
    assert published[1:1001] == json.loads(tokenizer.model_bytes)["merges"]
    assert all(
        tokenizer.decode(ids) == " ".join(filter(None, line.split(" ")))
        for ids, line in zip(tokenizer.encode_batch(lines[::50], 1), lines[::50], strict=True)
    )
