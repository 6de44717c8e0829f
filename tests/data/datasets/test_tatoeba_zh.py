import random
import tempfile
from pathlib import Path

import pytest
from fake_downloads import texts, write_raw

from transformer.data import datasets
from transformer.data.datasets.tatoeba_zh import sentence_key, split_pairs
from transformer.system.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data" / "tatoeba-zh"


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    # TFDS leaves an empty folder in the temporary directory for each builder.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def raw(tmp_path):
    files = {
        "train.en.gz": ["Hi.", "Run!", "I agree.", "He\u2028left."],
        "train.zh": ["嗨。", "跑！", "我同意。", "他\u2028走了。"],
        "validation.en": ["Stop!"],
        "validation.zh": ["停！"],
        "test.en": ["Cats?", "Dogs?"],
        "test.zh": ["猫？", "狗？"],
    }
    return write_raw(tmp_path / "raw", files)


def prepared(raw, tmp_path):
    builder = datasets.get_builder(
        "tatoeba_zh", data_dir=str(tmp_path / "data"), raw_dir=raw and str(raw)
    )
    datasets.prepare(builder)
    return builder


def test_splits_of_a_folder(raw, tmp_path):
    builder = prepared(raw, tmp_path)
    assert list(builder.info.splits) == ["train", "validation", "test"]
    assert texts(builder, "train", "en", "zh") == [
        ("Hi.", "嗨。"),
        ("Run!", "跑！"),
        ("I agree.", "我同意。"),
        ("He\u2028left.", "他\u2028走了。"),
    ]
    assert texts(builder, "validation", "en", "zh") == [("Stop!", "停！")]
    assert texts(builder, "test", "en", "zh") == [("Cats?", "猫？"), ("Dogs?", "狗？")]

    (raw / "test.zh").write_text("猫？\n犬？\n")
    changed = prepared(raw, tmp_path)
    assert changed.info.full_name != builder.info.full_name
    assert texts(changed, "test", "en", "zh")[1] == ("Dogs?", "犬？")
    assert texts(builder, "test", "en", "zh")[1] == ("Dogs?", "狗？")


def test_training_pairs_that_share_a_sentence_are_dropped():
    given = {
        "train": [
            ("Hi.", "嗨。"),
            ("STOP .", "别动。"),  # the English of validation
            ("Halt!", "停"),  # its Chinese
            ("Call Tom.", "给ＴＯＭ打电话!"),  # the Chinese of test, in wide characters
            ("?!", "……"),
            ("?!", "嗯？"),
        ],
        "validation": [("Stop!", "停！"), ("Stop!", "住手。")],
        "test": [("Phone Tom.", "给Tom打电话。"), ("...", "……")],
    }
    splits = split_pairs(given)
    assert splits == given | {"train": [("Hi.", "嗨。"), ("?!", "嗯？")]}
    assert list(splits) == ["train", "validation", "test"]


def sides_apart(splits):
    names = "train", "validation", "test"
    for held_out in names[1:]:
        for other in {*names} - {held_out}:
            for side in (0, 1):
                keys = [{sentence_key(pair[side]) for pair in splits[n]} for n in (held_out, other)]
                assert keys[0].isdisjoint(keys[1])


def test_a_cut_depends_on_the_sentences_alone():
    # 300 English sentences, each with two translations of its own.
    pairs = [(f"Number {i // 2}.", f"第{i}句。") for i in range(600)]
    splits = split_pairs({"train": pairs})
    counts = {name: len(split) for name, split in splits.items()}
    assert counts == {"train": 2 * 243, "validation": 27, "test": 30}
    sides_apart(splits)
    test = {en for en, _ in splits["test"]}
    again = split_pairs({"train": random.Random(7).sample(pairs, len(pairs))})
    assert {en for en, _ in again["test"]} == test
    more = split_pairs({"train": [*pairs, ("Another.", "又一句。")]})
    assert len(test & {en for en, _ in more["test"]}) >= 29


def test_a_cut_shares_no_chinese_sentence():
    # Each sentence has two translations; each pair is linked to the next.
    pairs = [(f"Number {i // 2}.", f"第{(i + 1) // 2}句。") for i in range(600)]
    splits = split_pairs({"train": pairs})
    sides_apart(splits)
    assert len(splits["test"]) == 30
    assert len(splits["train"]) > 300


def test_errors(raw, tmp_path):
    shared = {
        "train": [("Hi.", "嗨。")],
        "validation": [("Hi!", "你好。")],
        "test": [("A.", "一。")],
    }
    with pytest.raises(UserError, match=r"no training pair .* other files into data\.raw_dir"):
        split_pairs(shared)
    with pytest.raises(UserError, match=r"is not downloaded; set data\.raw_dir .* train\.zh"):
        prepared(None, tmp_path)
    with pytest.raises(UserError, match=r"nowhere/train\.en is missing"):
        prepared(tmp_path / "nowhere", tmp_path)
    (raw / "test.zh").unlink()
    with pytest.raises(UserError, match=r"raw/test\.zh is missing, and so is test\.zh\.gz"):
        prepared(raw, tmp_path)
    (raw / "test.zh").write_text("猫？\n")
    with pytest.raises(UserError, match=r"test\.en has 2 lines and .*test\.zh has 1"):
        prepared(raw, tmp_path)
    (raw / "test.zh").write_text("猫？\n狗？\n", encoding="gb18030")
    with pytest.raises(UserError, match=r"raw/test\.zh is not UTF-8: line 1, byte 3"):
        prepared(raw, tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/tatoeba-zh")
def test_real_files(tmp_path):
    builder = datasets.get_builder("tatoeba_zh", data_dir=str(tmp_path), raw_dir=str(SHARED))
    splits = {
        name: [(pair["en"], pair["zh"]) for _, pair in pairs]
        for name, pairs in builder._split_generators(None).items()
    }
    assert {name: len(pairs) for name, pairs in splits.items()} == {
        "train": 17_781, "validation": 1000, "test": 1000,
    }  # fmt: skip
    sides_apart(splits)
    assert splits["train"][0] == (
        "I should have known better than to call him.",
        "早知道我不應該打電話給他。",
    )
    assert splits["validation"][0] == ("How old do you think she is?", "你认为她多大？")
    lines = (SHARED / "validation.zh").read_text(encoding="utf-8").split("\n")
    assert [zh for _, zh in splits["validation"]] == lines[:-1]
