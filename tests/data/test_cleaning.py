"""The filters of training pairs, and the page about them."""

import dataclasses
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs import base, demo
from transformer.data import token_cache as module
from transformer.data.batches import PackedPairs
from transformer.data.cleaning import DUPLICATES, FILTERS, OFF, Cleaning, reason
from transformer.data.distinct_hashes import DistinctHashes
from transformer.data.pairs import ReadPairs
from transformer.data.sources import DataConfig, training_source
from transformer.data.token_cache import token_cache
from transformer.data.token_files import TokenizedPairs
from transformer.data.token_workers import PairEncoder
from transformer.data.tokenizers import TokenizerConfig, Tokenizers, get_tokenizers
from transformer.data.words import words_of
from transformer.runs.run_config import Config, checked_section
from transformer.system.errors import UserError
from transformer.tasks.pair_training import Seq2SeqTraining

PAGE = Path(__file__).parents[2] / "docs/cleaning.md"
LATIN = {"source_script": "Latin", "target_script": "Latin"}
JAPANESE = {"source_script": "Han, Hiragana,Katakana"}


def tokenizers_of(pairs: list[tuple[str, str]], **cleaning) -> Tokenizers:
    config = TokenizerConfig("word", 100, True, 1000, 0.0, 1, None, None)
    return get_tokenizers("nowhere", config, source_of(pairs), (), Cleaning(**cleaning))


def source_of(pairs: list[tuple[str, str]]) -> ReadPairs:
    return ReadPairs(lambda: iter(pairs), len(pairs), str(pairs), "pairs")


def cleaned(folder, pairs, **fields) -> TokenizedPairs:
    encoder = PairEncoder(tokenizers_of(pairs), (9, 9), cleaning=Cleaning(**fields), tags=("<bt>",))
    return token_cache(source_of(pairs), encoder, folder)


@pytest.mark.parametrize(
    ("fields", "source", "target", "expected"),
    [
        ({}, "a a a a", "a", None),
        ({"max_length_ratio": 3.0}, "a b c", "a", None),
        ({"max_length_ratio": 3.0}, "a b c d", "a", "length_ratio"),
        ({"max_length_ratio": 1.5}, "a b", "a b c d", "length_ratio"),
        ({"drop_identical": True}, "a  b ", "a b", "identical"),
        ({"drop_identical": True}, "A b", "a b", None),
        ({"drop_identical": True}, "<bt> a b", "a b", "identical"),
        (LATIN, "abc", "Überfluß 1ª 10 µ", None),
        (LATIN, "abc", "дом", "wrong_script"),
        (LATIN, "дом", "abc", "wrong_script"),
        (LATIN, "10:30 (+2)", "\U0001f600", None),  # no letters
        (LATIN, "\uff21\uff22", "\U0001d41a", None),  # wide and bold ones
        (LATIN, "ab дом", "a", "wrong_script"),  # 2 of 5
        (LATIN | {"min_script_share": 0.4}, "ab дом", "a", None),
        (LATIN | {"min_script_share": 1.0}, "abcdefghijк", "a", "wrong_script"),
        ({"source_script": "Cyrillic"}, "<bt> Да", "yes", None),  # a tag is no part
        ({"source_script": "Cyrillic"}, "п\u02bcять", "five", None),
        (JAPANESE, "漢字とカタカナー", "x", None),
        (JAPANESE, "한국어", "x", "wrong_script"),
        ({"target_script": "Devanagari"}, "x", "हिन्दी", None),
        ({"max_characters_per_token": 5}, "abcde fghij", "a", None),
        ({"max_characters_per_token": 5}, "a", "abcdef", "long_token"),
        ({"max_characters_per_token": 5}, "abc\u00a0def", "a", "long_token"),
        ({"max_characters_per_token": 5}, "我们都喜欢吃苹果和香蕉", "ไทยไทยไทย", None),
        ({"max_characters_per_token": 5}, "我们abcdef都", "a", "long_token"),
        ({"max_length_ratio": 3.0, "drop_identical": True}, "a", "a", "identical"),
        (LATIN | {"max_length_ratio": 3.0}, "дом дом дом дом", "a", "length_ratio"),  # the first
        ({"max_characters_per_token": 1}, "<bt>", "", None),  # nothing is left
    ],
)
def test_the_filters_of_a_pair(fields, source, target, expected):
    words = [words_of(source), words_of(target)]
    assert reason(Cleaning(**fields), ["<bt>"], words, [*map(len, words)]) == expected


A, B, C, D = ("a b", "x"), ("a  b", "x y"), ("c", "x"), (" a b", "x")
TAGGED = ("<bt> a b", "x")


@pytest.mark.parametrize(
    ("choice", "pairs", "kept"),
    [
        ("pair", [A, B, C, D, A, TAGGED], [0, 1, 2, 5]),
        ("source", [A, B, C, D, TAGGED], [0, 2, 4]),
        ("target", [A, B, C, D, TAGGED], [0, 1]),
        ("none", [A, A], [0, 1]),
        # The first stays that no other filter drops.
        ("source", [("a", "x " * 9), ("a", "x"), ("a", "y")], [1]),
    ],
)
def test_duplicates(tmp_path, monkeypatch, choice, pairs, kept):
    for size in (1, 2, 100):  # pairs that are tokenised at once
        monkeypatch.setattr(module, "_CHUNK", size)
        found = cleaned(tmp_path / str(size), pairs, drop_duplicates=choice)
        encode, numbers = tokenizers_of(pairs).source.encode, range(len(found))
        ids = [[found.source(i)[:-1].tolist(), found.target(i)[:-1].tolist()] for i in numbers]
        assert ids == [[encode(text) for text in pairs[number]] for number in kept]
        assert found.report["total"] == len(pairs)
        if choice != "none":
            dropped = len(pairs) - len(kept) - found.report["target_too_long"]
            assert found.report["duplicate"] == found.dropped["duplicate"] == dropped
        again = cleaned(tmp_path / str(size), pairs, drop_duplicates=choice)
        assert again.report == found.report


def test_distinct_hashes():
    random, found, expected = np.random.default_rng(0), DistinctHashes(), set()
    for size in (0, 1, 7, 7, 1, 50, 3, 0, 200, 1, 1, 31):
        hashes = random.integers(0, 100, size, np.uint64) + np.uint64(2**64 - 100)
        new = []
        for one in hashes.tolist():
            new.append(one not in expected)
            expected.add(one)
        assert found.add(hashes).tolist() == new
        held = [len(array) for array in found._arrays]
        assert sum(held) == len(expected)
        assert all(one > 2 * other for one, other in pairwise(held))


def test_the_key_of_a_cache_is_the_earlier_one_if_all_are_off(tmp_path):
    pairs = [A, C]
    both = tokenizers_of(pairs)
    changes = [
        {}, {"min_script_share": 0.7}, {"max_length_ratio": 3.0}, {"max_length_ratio": 4.0},
        {"drop_identical": True}, LATIN, LATIN | {"min_script_share": 0.7},
        {"max_characters_per_token": 40}, {"drop_duplicates": "pair"},
    ]  # fmt: skip
    for count, fields in enumerate(changes):
        encoder = PairEncoder(both, (9, 9), cleaning=Cleaning(**fields))
        token_cache(source_of(pairs), encoder, tmp_path)
        assert len([x for x in tmp_path.iterdir() if x.is_dir()]) == max(1, count)
    identity = [3, str(pairs), both.source.sha256, both.target.sha256, 9, 9, None, 0.0, 1]
    key = module.hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    meta = json.loads((tmp_path / key / "meta.json").read_text())
    assert [*meta["counts"]] == ["empty", "source_too_long", "target_too_long", "source_cut"]


def test_nothing_left_names_the_filters(tmp_path):
    with pytest.raises(UserError) as error:
        cleaned(tmp_path, [("a", "a")], drop_identical=True)
    assert str(error.value) == (
        "no pair is left of 1 pairs (empty: 0, source_too_long: 0, target_too_long: 0, "
        "identical: 1); see data.max_source_length and data.max_target_length, and "
        "docs/cleaning.md"
    )


def test_a_tokenizer_learns_from_clean_pairs():
    pairs = [("a b", "x"), ("<bt> c", "дом"), ("a b", "x"), ("longword", "x")]
    found = tokenizers_of(pairs, **LATIN, max_characters_per_token=4, drop_duplicates="pair").source
    assert not {"▁дом", "▁longword", "▁c"} & {*found.pieces}
    assert {"▁a", "▁x"} < {*found.pieces}
    assert "▁дом" in tokenizers_of(pairs).source.pieces
    with pytest.raises(UserError, match=r"^the filters leave none of 4 pairs; see docs/cl"):
        tokenizers_of(pairs, source_script="Greek")


UNKNOWN = "which is no script known here;"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_length_ratio", 0.5, "is 0.5; it must be at least 1"),
        ("max_length_ratio", float("nan"), "is nan; it must be a finite number"),
        ("max_length_ratio", -1, "is -1; it must be at least 1"),
        ("min_script_share", 0.0, "is 0.0; it must be above 0 and at most 1"),
        ("min_script_share", 1.5, "is 1.5; it must be above 0 and at most 1"),
        ("max_characters_per_token", -1, "is -1; it must be at least 0"),
        ("drop_duplicates", "both", "is 'both'; it must be one of: none, pair, source, target"),
        ("source_script", "latin", f"is 'latin', {UNKNOWN} did you mean 'Latin'?"),
        ("target_script", "Han,Kyrillic", f"is 'Kyrillic', {UNKNOWN} did you mean 'Cyrillic'?"),
        ("target_script", "zh", f"is 'zh', {UNKNOWN} choose one of Arabic, Armenian, "),
        ("target_script", "Latin,", f"is '', {UNKNOWN} choose one of Arabic, Armenian, "),
    ],
)
def test_values_that_cannot_be(field, value, message):
    fields = base.get_config().data.to_dict() | {field: value}
    with pytest.raises(UserError, match=re.escape(f"data.{field} {message}")):
        checked_section("data", DataConfig, fields)


def test_configs_without_the_fields_are_of_no_filter():
    fields = base.get_config().to_dict()
    for field in dataclasses.fields(Cleaning):
        assert fields["data"].pop(field.name) == getattr(OFF, field.name)
    data = Config.from_dict(fields).data
    assert Cleaning.of(data) == OFF
    assert OFF.filters == []
    assert Cleaning.of(object()) == OFF


def test_the_page(tmp_path):
    """The example of docs/cleaning.md, with the fields of its command."""
    page = PAGE.read_text()
    blocks = (re.findall(rf"```{x}\n(.*?)```", page, re.S) for x in ("text", "sh"))
    (sample,), (command, *_) = blocks
    (tmp_path / "noisy.tsv").write_text(sample)
    config = demo.get_config()
    for word in shlex.split(command.replace("\\\n", " ")):
        if match := re.fullmatch(r"--config\.(\w+)\.(\w+)=(.*)", word):
            section, field, value = config[match[1]], match[2], match[3]
            kind = section.get_type(field)
            section[field] = value == "True" if kind is bool else kind(value)
    data = Config.from_dict(config.to_dict(), paths_are_here=False).data
    source = training_source(dataclasses.replace(data, train_file=str(tmp_path / "noisy.tsv")))
    cleaning, limits = Cleaning.of(data), (data.max_source_length, data.max_target_length)
    tokenizers = get_tokenizers("new", TokenizerConfig(**config.tokenizer), source, (), cleaning)

    def cache(cleaning: Cleaning) -> TokenizedPairs:
        return token_cache(source, PairEncoder(tokenizers, limits, cleaning=cleaning), tmp_path)

    found = cache(cleaning)
    assert f"\n```\ndata     {found.summary}\n```\n" in page
    fewer = cache(dataclasses.replace(cleaning, drop_duplicates="source"))
    assert f"`{fewer.summary.partition(';')[0]}`" in page
    # What the report page shows.
    parts = {
        "packed": PackedPairs(found, 64, 64, 0),
        "task": SimpleNamespace(tokenizers=tokenizers),
    }
    validation = SimpleNamespace(packed=SimpleNamespace(pairs=found))
    training = SimpleNamespace(corpora=["train"], validation=validation, **parts)
    counts = Seq2SeqTraining.facts(training).counts
    shown = {name: counts[f"dropped: {name}"] for name in found.dropped}
    assert shown == found.dropped == {
        "empty": 1, "source too long": 0, "target too long": 0, "length ratio": 1, "identical": 1,
        "wrong script": 2, "long token": 1, "duplicate": 1,
    }  # fmt: skip
    # The table has the filters in their order, and the choices.
    rows = re.findall(r"^\| ([a-z ]+) \| `data", page, re.M)
    assert rows == [name.replace("_", " ") for name in FILTERS]
    assert all(f"`{choice}`" in page for choice in DUPLICATES[1:])
