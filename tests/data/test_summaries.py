"""Documents and summaries: JSON lines, and TFDS data sets from fabricated downloads."""

import gzip
import hashlib
import json
import sys

import pytest
from fake_downloads import tgz, zipped
from ml_collections import ConfigDict

from configs import summarization
from transformer.data.summaries import SummaryData, open_summaries, references
from transformer.system.errors import UserError


def data(**changes) -> SummaryData:
    fields = ConfigDict(summarization.get_data()).to_dict()
    return SummaryData(**fields | {"dataset": None} | changes)


def json_data(path, text, **changes):
    path.write_text(text)
    fields = {"document_field": "dialogue", "summary_field": "summary"}
    return data(train_file=str(path), test_file=str(path), **fields | changes)


RECORDS = [
    {"dialogue": "A: Hi.\nB: Ho. ", "summary": "They greet.", "summary2": "Greetings."},
    {"dialogue": "x", "summary": "", "summary2": "y"},
]


@pytest.mark.parametrize(
    ("line_break", "document"), [(" ", "A: Hi. B: Ho."), (" <n> ", "A: Hi. <n> B: Ho.")]
)
def test_json_lines(line_break, document, tmp_path):
    lines = "".join(json.dumps(record) + "\n\n" for record in RECORDS)
    config = json_data(
        tmp_path / "a.jsonl",
        lines,
        line_break=line_break,
        test_summary_fields="summary, summary2",
    )
    source = open_summaries(config, "train")
    assert list(source.pairs()) == [(document, "They greet."), ("x", "")]
    assert len(source) == 2
    assert source.sample(1) == [(document, "They greet.")]
    assert references(config, "test") == [["They greet.", ""], ["Greetings.", "y"]]
    assert references(config, "train") == [["They greet.", ""]]
    zipped = tmp_path / "a.jsonl.gz"
    zipped.write_bytes(gzip.compress(lines.encode()))
    fields = dict(document_field="dialogue", summary_field="summary", line_break=line_break)
    other = open_summaries(data(train_file=str(zipped), **fields), "train")
    assert other.fingerprint == source.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": "a", "train_source": "b", "train_target": "c"}, "both given"),
        ({"train_file": "a", "long_documents": "drop"}, "must be one of: cut, refuse"),
        ({"train_file": "a", "line_break": "\n"}, "holds a line break"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(UserError, match=message):
        data(**changes)


# --- TFDS, without a network and without TensorFlow ---------------------------------------


def of_dataset(name, tmp_path, document, summary, split="train", **changes):
    fields = {"document_field": document, "summary_field": summary, "data_dir": str(tmp_path)}
    return list(open_summaries(data(dataset=name, **fields, **changes), split).pairs())


def test_gigaword(internet, tmp_path):
    names = ("train", "dev", "test")
    files = {f"org_data/{x}.src.txt": f"{x} <unk> .\nb\n" for x in names}
    files |= {f"org_data/{x}.tgt.txt": f"{x}\nc\n" for x in names}
    from tensorflow_datasets.summarization import gigaword

    internet.names[gigaword._URL] = "org_data.zip"
    internet[gigaword._URL] = zipped(files)
    asked = "gigaword", tmp_path, "document", "summary"
    assert sorted(of_dataset(*asked)) == [("b", "c"), ("train UNK .", "train")]
    assert sorted(of_dataset(*asked, split="test")) == [("b", "c"), ("test <unk> .", "test")]
    with pytest.raises(UserError, match=r"gigaword has no 'x' \(data\.summary_field\)"):
        of_dataset("gigaword", tmp_path, "document", "x")


def test_cnn_dailymail(internet, tmp_path):
    from tensorflow_datasets.summarization import cnn_dailymail

    urls = {"cnn": "http://cnn/1", "dailymail": "http://dm/1"}
    archives = {}
    for paper, url in urls.items():
        name = hashlib.sha1(url.encode()).hexdigest()
        story = f"{paper} news\n\nMore.\n\n@highlight\n\nOne\n\n@highlight\n\nTwo\n"
        archives[paper] = tgz({f"{paper}/stories/{name}.story": story})
    links = cnn_dailymail._DL_URLS
    lists = "".join(f"{url}\n" for url in urls.values())
    served = {"cnn_stories": archives["cnn"], "dm_stories": archives["dailymail"]}
    served |= {f"{x}_urls": f"{lists}{x}\n".encode() for x in ("train", "val", "test")}
    for name, content in served.items():
        internet.names[links[name]] = f"{name}.tgz" if name.endswith("stories") else f"{name}.txt"
        internet[links[name]] = content
    found = of_dataset("cnn_dailymail", tmp_path, "article", "highlights", line_break=" <n> ")
    assert sorted(found) == [
        (f"{paper} news. More.", "One. <n> Two.") for paper in ("cnn", "dailymail")
    ]


def test_scientific_papers(internet, tmp_path):
    from tensorflow_datasets.datasets.scientific_papers import (
        scientific_papers_dataset_builder as builder,
    )

    record = {
        "article_id": "1",
        "article_text": ["One .", "Two ."],
        "abstract_text": ["<S> Short . </S>"],
        "section_names": ["a"],
    }
    line = json.dumps(record) + "\n"
    for paper, url in builder._URLS.items():
        files = {f"{paper}-dataset/{x}.txt": line for x in ("train", "val", "test")}
        internet.names[url] = f"{paper}.zip"
        internet[url] = zipped(files)
    found = of_dataset("scientific_papers/arxiv", tmp_path, "article", "abstract")
    assert found == [("One . Two .", "Short .")]


def test_xsum(internet, tmp_path):
    from tensorflow_datasets.summarization import xsum

    splits = {"train": ["1"], "validation": ["2"], "test": ["3"]}
    internet[xsum._URL] = json.dumps(splits).encode()
    text = (
        "[XSUM]URL[XSUM]\nx\n[XSUM]INTRODUCTION[XSUM]\nShort.\n[XSUM]RESTBODY[XSUM]\nEmail\nLong.\n"
    )
    with pytest.raises(UserError, match=r"xsum.*is not complete"):
        of_dataset("xsum", tmp_path, "document", "summary")
    folder = tmp_path / "raw"
    folder.mkdir()
    stem = "xsum-extracts-from-downloads"
    archive = tgz({f"{stem}/{i}.data": text for i in "123"})
    (folder / f"{stem}.tar.gz").write_bytes(archive)
    found = of_dataset("xsum", tmp_path, "document", "summary", raw_dir=str(folder))
    assert found == [("Long.", "Short.")]
    assert "tensorflow" not in sys.modules
