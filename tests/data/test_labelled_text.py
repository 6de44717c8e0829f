import dataclasses
import gzip
import json

import pytest
from fake_downloads import zipped
from small_bert import CLASSIFICATION

from transformer.data.labelled_text import (
    Example,
    classes_of,
    examples_sha256,
    numbers_of,
    read_examples,
)
from transformer.system.errors import UserError

DATA = CLASSIFICATION.data


def read(path, split="train", **changes):
    return read_examples(
        dataclasses.replace(DATA, **{f"{split}_file": str(path)}, **changes), split
    )


def test_tsv_with_and_without_a_header(tmp_path):
    """As SST-2, CoLA and MRPC have it; a quotation mark is a sign like others."""
    (tmp_path / "sst2.tsv").write_text('a "film\t0\nfunny\t1\n')
    assert read(tmp_path / "sst2.tsv") == [Example('a "film', None, "0"), ("funny", None, "1")]
    (tmp_path / "cola.tsv.gz").write_bytes(gzip.compress(b"gj04\t1\t\tThe sailors rode.\r\n"))
    columns = {"text_field": "4", "label_field": "2"}
    assert read(tmp_path / "cola.tsv.gz", **columns) == [("The sailors rode.", None, "1")]
    (tmp_path / "mrpc.tsv").write_text("Quality\t#1 String\t#2 String\n1\tone\ttwo\n")
    columns = {"text_field": "#1 String", "second_field": "#2 String", "label_field": "Quality"}
    assert read(tmp_path / "mrpc.tsv", has_header=True, **columns) == [("one", "two", "1")]


def test_json_lines(tmp_path):
    rows = [{"a": "one", "l": 1}, {"a": "two", "l": "x", "more": None}, {"a": "", "l": 2.5}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    found = read(tmp_path / "x.jsonl", text_field="a", label_field="l")
    assert found == [("one", None, "1"), ("two", None, "x"), ("", None, "2.5")]


def test_values_of_labels(tmp_path):
    """1 and 1.0 are one class, as numbers are as the file has them; a blank line is nothing."""
    rows = [1, 1.0, -0.0, 2.5, "1", " x ", 10**400]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps({'1': 'a', '2': x})}\n" for x in rows))
    labels = [x.label for x in read(tmp_path / "x.jsonl")]
    assert labels == ["1", "1", "0", "2.5", "1", "x", f"1{'0' * 400}"]
    assert read(tmp_path / "x.jsonl", regression=True)[1].label == "1.0"
    (tmp_path / "bool.json").write_text('{"1": "a", "2": true}\n{"1": "a", "2": false}\n')
    assert [x.label for x in read(tmp_path / "bool.json")] == ["True", "False"]
    (tmp_path / "x.tsv").write_text("a\t1\n\nb\t2\n \n\n")
    assert [x.label for x in read(tmp_path / "x.tsv")] == ["1", "2"]


def test_the_hash_is_that_of_the_examples():
    first = [Example("a", "b", "1")]
    assert examples_sha256(first) == examples_sha256([Example("a", "b", "1")])
    for other in (Example("a", None, "1"), Example("a", "b", "2"), Example("ab", "", "1")):
        assert examples_sha256(first) != examples_sha256([other])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("2 10 2", ["2", "10"]),
        ("b a", ["a", "b"]),
        ("1 x 10", ["1", "10", "x"]),
        ("--5 1", ["--5", "1"]),
        ("-5 1 -10", ["-10", "-5", "1"]),
        (f"{'9' * 5000} 10 9", ["10", "9", "9" * 5000]),  # Python reads no number so long
    ],
)
def test_classes_are_in_order(labels, classes):
    assert classes_of([Example("", None, label) for label in labels.split()], "x") == classes


def test_numbers_of_labels():
    given = [Example("", None, "1"), Example("", None, "0.5")]
    assert numbers_of(given, None, "x") == [1.0, 0.5]
    assert numbers_of(given, ["0.5", "1"], "x") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"the train split has no examples; give one with some"),
        ('{"1": "a", "2": " "}', r"line 1 has no label in '2'; remove the line"),
        ('{"1": "a"}', r"line 1 has no field '2' \(data.label_field\); it has: 1$"),
        ('{"1": "a", "2": null}', r"line 1 has no label in '2'"),
        ('{"1": "a", "2": NaN}', r"line 1 is not JSON \(NaN is not JSON\); correct it"),
        ('{"1": "a", "2": 1e999}', r"line 1: the label is inf; give text or a finite number"),
        ('{"1": "a", "2": [1]}', r"line 1: the label is \[1\]; give text or a finite number"),
        ('{"1": "a", "2": {}}', r"line 1: the label is \{\}; give text or a finite number"),
        ('{"1": "a", "2": "a\\nb"}', r"line 1: the label 'a\\nb' has a line break"),
        ('{"1": "\\ud800", "2": 1}', r"line 1 is not JSON \(.*surrogates not allowed"),
        (
            '{"1": "a", "2": 1}\n\n{"1": "a", "2": true}',
            r"line 3: the label is True, and 1 in .*line 1; use true and false for all labels or",
        ),
    ],
)
def test_files_that_are_refused(content, message, tmp_path):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.jsonl")


def test_labels_that_cannot_be_learned():
    given = [Example("a", None, "x"), Example("b", None, "y")]
    with pytest.raises(UserError, match="dev, example 2: unknown label 'y'; the training data ha"):
        numbers_of(given, ["w", "x"], "dev")
    for label in ("x", "nan", "inf", "1e308"):
        with pytest.raises(UserError, match=f"dev, example 1: the label is '{label}', and data.re"):
            numbers_of([Example("a", None, label)], None, "dev")
    with pytest.raises(UserError, match="dev has one label alone, 'x'; two at least are needed"):
        classes_of(given[:1], "dev")


def test_glue_from_download_to_examples(internet, tmp_path):
    """SST-2 and MRPC by name, as TFDS reads the files that GLUE has."""
    internet["https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"] = zipped({
        "SST-2/train.tsv": "sentence\tlabel\none ö\t1\ntwo\t0\n",
        "SST-2/dev.tsv": "sentence\tlabel\nthree\t0\n",
        "SST-2/test.tsv": "index\tsentence\n0\tfour\n",
    })  # fmt: skip
    columns = {"text_field": "sentence", "label_field": "label"}
    data = dataclasses.replace(DATA, dataset="glue/sst2", data_dir=str(tmp_path), **columns)
    found = read_examples(data, "train")
    assert sorted(found) == [("one ö", None, "positive"), ("two", None, "negative")]
    assert read_examples(data, "validation") == [("three", None, "negative")]
    assert len(read_examples(data, "train[:1]")) == 1
    with pytest.raises(UserError, match=r"test, example 1 has no label in 'label'"):
        read_examples(data, "test")  # GLUE keeps them
    with pytest.raises(
        UserError, match=r"glue/sst2 has no 'x' \(data.text_field\); it has: .*label"
    ):
        read_examples(dataclasses.replace(data, text_field="x"), "train")
    with pytest.raises(UserError, match=r"the split is 'dev', which glue/sst2 does not have; "):
        read_examples(data, "dev")
