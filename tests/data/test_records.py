"""Records of files in every form and packing, and what is refused."""

import dataclasses
import functools
import gzip
import hashlib
import json
import lzma
import tracemalloc

import pyarrow
import pytest
from pyarrow import parquet
from small_bert import CLASSIFICATION, TINY

from configs import base, summarization
from transformer.data.documents import read_documents, text_sha256
from transformer.data.labelled_text import read_examples
from transformer.data.records import Records
from transformer.data.sources import DataConfig, open_source
from transformer.data.summaries import SummaryData, open_summaries
from transformer.data.text_files import read_lines
from transformer.system.errors import UserError

DATA = DataConfig(**base.get_config().data.to_dict() | {"dataset": None, "train_source": "a",
                                                        "train_target": "b"})  # fmt: skip
PAIRS = [("a dog", "ein Hund"), ("", "leer"), ("two birds", "zwei V\u00f6gel")]
PACKED = {
    "": bytes,
    # The time in a gzip file would be in names of tests, which each process has to find alike.
    ".gz": functools.partial(gzip.compress, mtime=0),
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
NESTED = {"source_field": "translation.en", "target_field": "translation.de"}
NUMBERED = {"source_field": "3", "target_field": "1"}


def lines(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def objects(rows) -> bytes:
    return lines(*(json.dumps(row) for row in rows))


TEXT_FORMS = {
    "names.tsv": (lines("de\tn\ten", *(f"{b}\t7\t{a}" for a, b in PAIRS)), {"has_header": True}),
    "numbers.tsv": (lines("", *(f"{b}\t7\t{a}\r" for a, b in PAIRS)), NUMBERED),
    "both.TSV": (
        lines("de\tn\ten", *(f"{b}\t7\t{a}" for a, b in PAIRS)),
        {"has_header": True, "source_field": "en", "target_field": "1"},
    ),
    "of_no_ending": (lines(*(f"{b}\t7\t{a}" for a, b in PAIRS)), NUMBERED),
    "x.jsonl": (objects({"en": a, "more": [1], "de": b} for a, b in PAIRS), {}),
    "x.JSON": (objects({"translation": {"de": b, "en": a}} for a, b in PAIRS), NESTED),
    "x.ndjson": (objects({"a.b": a, "de": b} for a, b in PAIRS), {"source_field": "a.b"}),
}


def pairs_of(**fields) -> list[tuple[str, str]]:
    config = dataclasses.replace(DATA, train_source=None, train_target=None, **fields)
    source = open_source(config, "train")
    found = list(source.pairs())
    assert len(source) == len(found)
    return found


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("name", TEXT_FORMS)
def test_every_form_in_every_packing(name, packing, tmp_path):
    content, fields = TEXT_FORMS[name]
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKED[packing](content))
    assert pairs_of(train_file=str(path), **fields) == PAIRS


@pytest.mark.parametrize("packing", ["none", "gzip", "zstd", "snappy"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_parquet(packing, is_nested, tmp_path):
    rows = [{"en": a, "n": 7, "de": b} for a, b in PAIRS]
    rows = [{"translation": row, "id": 3} for row in rows] if is_nested else rows
    table, path = pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet"
    parquet.write_table(table, path, compression=packing, row_group_size=2)
    assert pairs_of(train_file=str(path), **(NESTED if is_nested else {})) == PAIRS


@pytest.mark.parametrize("packing", PACKED)
def test_parallel_text(packing, tmp_path):
    """Two files for each side, the second of them named by a pattern."""
    for number, part in enumerate((PAIRS[:2], PAIRS[2:])):
        for language, texts in zip(("en", "de"), zip(*part)):
            packed = PACKED[packing](lines(*texts))
            (tmp_path / f"{number}.{language}{packing}").write_bytes(packed)
    names = {
        f"train_{side}": f"{tmp_path}/0.{x}{packing}, {tmp_path}/[1-9].{x}{packing}"
        for side, x in (("source", "en"), ("target", "de"))
    }
    source = open_source(dataclasses.replace(DATA, **names), "train")
    assert (list(source.pairs()), len(source)) == (PAIRS, 3)
    lacking = dataclasses.replace(DATA, **names | {"train_target": f"{tmp_path}/0.de{packing}"})
    with pytest.raises(UserError, match=r"are 2 and 1 files; give as many of sources as of target"):
        open_source(lacking, "train")


def test_several_files_of_other_forms(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(objects({"1": a, "2": b} for a, b in PAIRS))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(lines("x\ty")))
    fields = {"source_field": "1", "target_field": "2"}
    assert pairs_of(train_file=f"{tmp_path}/*", **fields) == [*PAIRS, ("x", "y")]


def test_fingerprints_are_those_of_earlier_commits(tmp_path):
    """So token caches and recorded runs stay valid."""
    texts = [lines("a", "b"), lines("1", "2")]
    for name, text in zip("ab", texts):
        (tmp_path / name).write_bytes(text)
    names = {"train_source": f"{tmp_path}/a", "train_target": f"{tmp_path}/b"}
    hashes = [hashlib.sha256(text).hexdigest() for text in texts]
    found = open_source(dataclasses.replace(DATA, **names), "train").fingerprint
    assert found == hashlib.sha256(f"text {' '.join(hashes)}".encode()).hexdigest()

    rows = objects([{"dialogue": "A:\nB", "summary": "s"}])
    (tmp_path / "a.jsonl").write_bytes(rows)
    fields = summarization.get_data().to_dict() | {
        "dataset": None, "train_file": f"{tmp_path}/a.jsonl",
        "document_field": "dialogue", "summary_field": "summary",
    }  # fmt: skip
    identity = json.dumps([hashlib.sha256(rows).hexdigest(), "dialogue", "summary", "a b"])
    source = open_summaries(SummaryData(**fields), "train")
    assert source.fingerprint == hashlib.sha256(identity.encode()).hexdigest()
    others = {
        open_summaries(SummaryData(**fields | changes), "train").fingerprint
        for changes in ({}, {"summary_field": "other"}, {"line_break": "|"}, {"has_header": True})
    }
    assert len(others) == 4


def test_other_tasks_read_the_same_forms(tmp_path):
    path = tmp_path / "x.parquet"
    rows = [{"text": "one\n \ntwo", "of": {"label": 1}}, {"text": "three", "of": {"label": 0}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = dataclasses.replace(CLASSIFICATION.data, train_file=str(path))
    data = dataclasses.replace(data, text_field="text", label_field="of.label")
    assert read_examples(data, "train") == [("one\n \ntwo", None, "1"), ("three", None, "0")]
    # Plain text: a document a record, or between empty lines.
    (tmp_path / "x.txt").write_text("one\ntwo\n\n\nthree")
    texts = [
        dataclasses.replace(TINY.data, train_file=str(tmp_path / name)).texts("train")
        for name in ("x.parquet", "x.txt")
    ]
    assert [list(read_documents(x)) for x in texts] == 2 * [[["one", "two"], ["three"]]]
    assert len(set(map(text_sha256, texts))) == 1
    assert [where for where, _ in texts[1]] == [f"{tmp_path}/x.txt, line {n}" for n in (1, 5)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"a\tb\n", r"x.tsv, line 1 has no field 'en' \(data.source_language\); it has: "
         r"1, 2; see also data.has_header$"),
        ("h.tsv", b"en\tfr\na\tb\n", r"no field 'de' \(data.target_language\); it has: en, fr$"),
        ("h.tsv", b"en\tde\na\n", r"line 2 has 1 columns, and line 1 has 2; put one tab between"),
        ("h.tsv", b"en\tde\ten\na\tb\tc\n", r"line 1: two columns have one name; rename one"),
        ("h.tsv", b"en\tde\na\t\xff\n", r"h.tsv is not UTF-8: line 2, byte 3 is 0xff"),
        ("h.tsv", b"en\tde\n", r"h.tsv has no records; give a file with one a line"),
        ("x.jsonl", b"\n \n", r"x.jsonl has no records"),
        ("x.jsonl", b'{"en": "a", "x": {"y": 1}}', r"line 1 has no field 'de' \(data.target_langu"
         r"age\); it has: en, x.y$"),
        ("x.jsonl", b"{}\n", r"line 1 has no field 'en' .* it has: none$"),
        ("x.jsonl", b'{"en": "a", "de": null}', r"x.jsonl, line 1: 'de' is None, which is no text"),
        ("x.jsonl", b'{"en": "a", "de": ["b"]}', r"line 1: 'de' is \['b'\], which is no text"),
        ("x.json", b'[{"en": "a", "de": "b"}]', r"line 1: expected an object such as"),
        ("x.jsonl", b'\n{"en": "a"', r"line 2 is not JSON \(.*\); correct it"),
        ("x.jsonl", b'{"en": "\xff"}', r"is not UTF-8: line 1, byte 9 is 0xff"),
        ("x.jsonl.gz", PACKED[".gz"](b"{}" * 99)[:-9], r"damaged or not a gzip file: Compressed"),
        ("x.jsonl.xz", PACKED[".xz"](b"{}" * 99)[:-9], r"damaged or not a xz file: Compressed fil"),
        ("x.jsonl.zst", PACKED[".zst"](b"{}" * 99)[:-3], r"damaged or not a zstd file: "),
        ("x.jsonl.zst", b"{}", r"damaged or not a zstd file: "),
        ("x.jsonl.xz", b"{}", r"damaged or not a xz file: "),
        ("x.parquet", b"PAR1", r"x.parquet is damaged or not a Parquet file: "),
    ],
)  # fmt: skip
def test_files_that_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        pairs_of(train_file=str(tmp_path / name), has_header=name == "h.tsv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_field": "fr"}, r"x.parquet has no field 'fr' \(data.target_field\); it has: en, d"
         r"e, n, t.a$"),
        ({"target_field": "t.b"}, r"has no field 't.b'"),
        ({"target_field": "n"}, r"x.parquet, row 1: 'n' is 0, which is no text"),
        ({"target_field": "t"}, r"row 1: 't' is \{'a': 'x'\}, which is no text"),
        ({"target_field": "t.a"}, r"row 3: 't.a' is None, which is no text"),
        ({}, r"x.parquet, row 2: 'de' is not UTF-8 \('utf-8' codec can't decode byte 0xff"),
    ],
)  # fmt: skip
def test_parquet_that_is_refused(fields, message, tmp_path):
    bad = pyarrow.array([b"a", b"\xff", b"c"]).cast(pyarrow.binary()).view(pyarrow.string())
    texts, inside = ["a", "b", "c"], [{"a": "x"}, {"a": "y"}, None]
    table = pyarrow.table({"en": texts, "de": bad, "n": range(3), "t": inside})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match=message):
        pairs_of(train_file=str(tmp_path / "x.parquet"), **fields)


def test_a_damaged_page_of_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    table = pyarrow.table({x: [f"{x} {i}" for i in range(4000)] for x in ("en", "de")})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes(200) + content[240:])
    with pytest.raises(UserError, match=r"x\.parquet is damaged or not a Parquet file: "):
        pairs_of(train_file=str(path))


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl.zst", "x.tsv.xz"])
def test_memory_does_not_grow_with_the_file(name, tmp_path):
    """12 MB of text; Python's and Arrow's memory."""
    texts, path = [f"{i:06}" * 200 for i in range(10_000)], tmp_path / name
    if name == "x.parquet":
        table = pyarrow.table({"text": texts, "more": texts})
        parquet.write_table(table, path, row_group_size=1000, compression="none")
    elif name == "x.tsv.xz":
        path.write_bytes(lzma.compress(lines("text\tn", *(f"{x}\t1" for x in texts)), preset=0))
    else:
        path.write_bytes(PACKED[".zst"](objects({"text": text} for text in texts)))
    del texts
    before, arrow, count = pyarrow.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    for (text,) in Records([str(path)], {"text_field": "text"}, has_header=True).texts():
        count += len(text) == 1200
        arrow = max(arrow, pyarrow.total_allocated_bytes() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert max(peak, arrow) < 5e6  # two blocks of 1000 rows, and the buffers of codecs


def test_zstd_of_several_frames(tmp_path):
    (tmp_path / "x.zst").write_bytes(PACKED[".zst"](b"one\n") + PACKED[".zst"](b"two\n"))
    assert list(read_lines(tmp_path / "x.zst")) == ["one", "two"]
