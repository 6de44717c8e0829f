import dataclasses
import gzip
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer.data import datasets
from transformer.data.sources import (
    DataConfig,
    PairSource,
    TextPairs,
    _file_hash,
    open_source,
    open_text,
    training_source,
)
from transformer.system.errors import UserError

PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("two birds", "zwei V\u00f6gel")]


def make_config(**changes) -> DataConfig:
    fields = {field.name: None for field in dataclasses.fields(DataConfig)} | {
        "source_language": "en",
        "target_language": "de",
        "data_dir": "~/tensorflow_datasets",
        "train_split": "train",
        "validation_split": "validation",
        "test_split": "test",
        "max_source_length": 100,
        "max_target_length": 100,
    }
    return DataConfig(**fields | changes)


def read(source: PairSource, size: int = 2) -> list[tuple[str, str]]:
    return [pair for chunk in source.chunks(size) for pair in chunk]


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def write(tmp_path):
    """Writes bytes to a file and returns its path; compressed if the name ends in .gz."""

    def write_file(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    return write_file


# --- Text files ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_files(write, suffix):
    en = write(f"a.en{suffix}", b"a dog\na cat\ntwo birds\n")
    de = write(f"a.de{suffix}", "ein Hund\neine Katze\nzwei V\u00f6gel\n".encode())
    source = TextPairs(en, de)
    assert len(source) == 3
    assert list(source.chunks(2)) == [PAIRS[:2], PAIRS[2:]]
    assert list(source.chunks(3)) == [PAIRS]
    assert list(source.chunks(2)) == [PAIRS[:2], PAIRS[2:]]  # again from the start
    assert source.describe() == f"3 pairs of {en} and {de}"


def test_a_line_ends_at_a_line_feed_only(write):
    inside = "\x0b \x0c \x1c \x1d \x1e \x85 \u2028 \u2029 \r a"
    en = write("a.en", f"{inside}\nb\n".encode())
    de = write("a.de", f"1\n{inside}\n".encode())
    assert read(TextPairs(en, de)) == [(inside, "1"), ("b", inside)]


@pytest.mark.parametrize(
    "content",
    [
        b"one\ntwo\n",
        b"one\ntwo",  # no line feed at the end
        b"one\r\ntwo\r\n",
        b"one\r\ntwo\r",
        b"\xef\xbb\xbfone\ntwo\n",  # byte-order mark
        b"\xef\xbb\xbfone\r\ntwo\r\n",
    ],
)
def test_line_ends_and_byte_order_mark_are_no_text(write, content):
    source = TextPairs(write("a", content), write("b", b"1\n2\n"))
    assert read(source) == [("one", "1"), ("two", "2")]
    assert read(source, size=1) == [("one", "1"), ("two", "2")]


def test_what_is_kept(write):
    # Empty lines, spaces, a mark that is not at the start of the file, a second \r.
    expected = [("", "1"), ("  a \t", "2"), ("\ufeffb", "3"), ("\r", "4")]
    source = TextPairs(write("a", b"\n  a \t\n\xef\xbb\xbfb\n\r\r\n"), write("b", b"1\n2\n3\n4\n"))
    assert read(source) == expected


def test_only_a_byte_order_mark(write):
    assert read(TextPairs(write("a", b"\xef\xbb\xbf"), write("b", b"1"))) == [("", "1")]


def test_fingerprint_is_of_the_content(write):
    a, b = write("a", b"one\ntwo\n"), write("b", b"1\n2\n")
    fingerprint = TextPairs(a, b).fingerprint
    assert len(fingerprint) == 64
    copy = TextPairs(write("c.gz", b"one\ntwo\n"), write("d", b"1\n2\n"))
    assert copy.fingerprint == fingerprint
    others = [
        TextPairs(b, a),
        TextPairs(a, a),
        TextPairs(a, write("e", b"1\n3\n")),
        TextPairs(write("f", b"onet\nwo\n"), b),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [0]),
        (2, [0, 5]),
        (3, [0, 3, 6]),
        (4, [0, 2, 5, 7]),
        (10, range(10)),
        (99, range(10)),
    ],
)
def test_sample_is_evenly_spaced(write, size, expected):
    numbers = "".join(f"{i}\n" for i in range(10)).encode()
    source = TextPairs(write("a", numbers), write("b", numbers))
    assert source.sample(size) == [(str(i), str(i)) for i in expected]


def test_sample_over_several_chunks(write):
    numbers = "".join(f"{i}\n" for i in range(40_000)).encode()
    source = TextPairs(write("a", numbers), write("b", numbers))
    assert [int(a) for a, _ in source.sample(5)] == [0, 8_000, 16_000, 24_000, 32_000]


def test_different_line_counts(write):
    a, b = write("a", b"1\n2\n3"), write("b", b"1\n2\n")
    with pytest.raises(UserError) as error:
        TextPairs(a, b)
    assert one_line(error) == (
        f"{a} has 3 lines and {b} has 2; line n of one must be the translation of line n of "
        "the other"
    )


def test_empty_files(write):
    a, b = write("a", b""), write("b.gz", b"")
    with pytest.raises(UserError) as error:
        TextPairs(a, b)
    assert one_line(error) == f"no sentence pairs in {a} and {b}"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"\xff\xfea\0\n\0", "line 1, byte 1 is 0xff"),  # UTF-16
        (b"a\nb\nab\xe9c\nd\n", "line 3, byte 3 is 0xe9"),  # Latin-1
        (b"a\n\xc3\nb", "line 2, byte 1 is 0xc3"),  # cut in the middle
        (b"a\n" * 1_000_000 + b"b\xff", "line 1000001, byte 2 is 0xff"),
        (b"a\xed\xa0\x80\n", "line 1, byte 2 is 0xed"),  # a surrogate
    ],
)
def test_invalid_utf8(write, content, where):
    path = write("a", content)
    with pytest.raises(UserError) as error:
        TextPairs(path, path)
    assert one_line(error) == f"{path} is not UTF-8: {where}; convert the file to UTF-8"


def test_files_that_cannot_be_read(write, tmp_path):
    good = write("good", b"a\n")
    with pytest.raises(UserError) as error:
        TextPairs(good, str(tmp_path / "missing.gz"))
    assert one_line(error) == f"cannot read {tmp_path}/missing.gz: No such file or directory"
    with pytest.raises(UserError) as error:
        TextPairs(str(tmp_path), good)
    assert one_line(error).startswith(f"{tmp_path} is not a file; give a text file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError) as error:
        TextPairs(str(tmp_path / "pipe"), good)
    assert one_line(error).startswith(f"{tmp_path}/pipe is not a file; give a text file")


def test_open_text(write, tmp_path):
    for name in ("a", "a.gz"):
        with open_text(write(name, b"one\r\ntwo")) as file:
            assert list(file) == [b"one\r\n", b"two"]
    with pytest.raises(UserError) as error:
        open_text(str(tmp_path))
    assert one_line(error) == f"cannot read {tmp_path}: Is a directory"


def test_a_file_without_permission(write, monkeypatch):
    path = write("a", b"a\n")

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    # Not by its mode: root may read everything.
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError) as error:
        TextPairs(path, path)
    assert one_line(error) == f"cannot read {path}: Permission denied"


@pytest.mark.parametrize("damage", ["no gzip", "cut", "sum", "block"])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "a.gz"
    whole = gzip.compress(b"a\n" * 1000)
    content = {
        "no gzip": b"plain\n",
        "cut": whole[:-9],
        "sum": whole[:-8] + b"\0\0\0\0" + whole[-4:],  # the check sum, then the length
        "block": whole[:10] + b"\xff" + whole[11:],  # the first after the header
    }
    path.write_bytes(content[damage])
    with pytest.raises(UserError) as error:
        TextPairs(str(path), str(path))
    assert one_line(error).startswith(f"{path} is damaged or not a gzip file: ")


@pytest.mark.parametrize("now", [(b"1\n", b"1\n2\n3"), (b"1\n2\n3", b""), (b"1\n", b"1\n")])
def test_files_that_change_while_they_are_read(write, now):
    a, b = write("a", b"1\n2\n3\n"), write("b", b"1\n2\n3\n")
    source = TextPairs(a, b)
    write("a", now[0])
    write("b", now[1])
    with pytest.raises(UserError) as error:
        read(source)
    assert one_line(error) == f"{a} or {b} has changed while it was read"


# --- From the configuration ---------------------------------------------------------------


def test_text_files_win_over_the_dataset(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write("a", b"1\n2\n")
    write("b", b"3\n4\n")
    config = make_config(
        dataset="grammar_en_de", train_source="~/a", train_target="~/b",
        test_source="~/b", test_target="~/a",
    )  # fmt: skip
    assert read(open_source(config, "train")) == [("1", "3"), ("2", "4")]
    assert read(open_source(config, "test")) == [("3", "1"), ("4", "2")]
    with pytest.raises(UserError) as error:
        open_source(config, "validation")
    assert one_line(error) == (
        "no text files for the validation split; give data.validation_source and "
        "data.validation_target"
    )
    with pytest.raises(UserError) as error:
        open_source(config, "test_2017_flickr")
    assert one_line(error) == (
        "there is no split 'test_2017_flickr' in the text files given; there are: train, test"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"train_source": "a"},
            "data.train_source is given without data.train_target; give both or neither",
        ),
        (
            {"dataset": "grammar_en_de", "test_target": "a", "test_source": ""},
            "data.test_target is given without data.test_source; give both or neither",
        ),
        (
            {"dataset": "grammar_en_de", "extra_source": "a"},
            "data.extra_source is given without data.extra_target; give both or neither",
        ),
        (
            {"extra_source": "a", "extra_target": "b"},
            "no training data; give data.dataset, or data.train_source and data.train_target",
        ),
        (
            {},
            "no training data; give data.dataset, or data.train_source and data.train_target",
        ),
        (
            {"dataset": "grammar_en_de", "max_target_length": 1},
            "data.max_target_length is 1; give 2 or more: a word and EOS",
        ),
    ],
)
def test_configurations_that_cannot_be(changes, expected):
    with pytest.raises(UserError) as error:
        make_config(**changes)
    assert one_line(error) == expected


def test_extra_pairs_and_both_directions(write):
    files = {f"{kind}_{side}": write(f"{kind}.{side}", b"".join(f"{kind} {side} {i}\n".encode()
             for i in range(count)))
             for kind, count in (("train", 3), ("extra", 2), ("validation", 1))
             for side in ("source", "target")}  # fmt: skip
    plain = {name: path for name, path in files.items() if "extra" not in name}

    def pairs(kind, count):
        return [(f"{kind} source {i}", f"{kind} target {i}") for i in range(count)]

    expected = pairs("train", 3), pairs("extra", 2)
    sources = [
        training_source(make_config(**config, both_directions=both))
        for config in (plain, files)
        for both in (False, True)
    ]
    once, twice = expected[0], expected[0] + expected[1]
    for source, all_pairs in zip(
        sources,
        (once, once + [pair[::-1] for pair in once], twice, twice + [pair[::-1] for pair in twice]),
        strict=True,
    ):
        assert len(source) == len(all_pairs)
        for size in (1, 2, 4, 100):
            chunks = list(source.chunks(size))
            assert [pair for chunk in chunks for pair in chunk] == all_pairs
            assert {len(chunk) for chunk in chunks[:-1]} <= {size}
        assert list(source.pairs()) == source.sample(100) == all_pairs
        assert source.describe().startswith("3 pairs of ")
    assert len({source.fingerprint for source in sources}) == 4
    assert sources[3].describe().endswith(", and 5 pairs of the same, exchanged")
    for size in (1, 2, 5, 9):
        sample = sources[3].sample(size)
        assert len(set(sample)) == len(sample) == size
        assert sample[0] == twice[0]
        assert len(set(sample) & set(twice)) == (size + 1) // 2
    # What is evaluated has them not.
    config = make_config(**files, both_directions=True)
    assert read(open_source(config, "validation")) == pairs("validation", 1)
    assert read(open_source(config, "train")) == once
    with pytest.raises(UserError, match="there is no split 'extra' in the text files given"):
        open_source(config, "extra")


# --- TFDS ---------------------------------------------------------------------------------


class TinyPairs(tfds.core.GeneratorBasedBuilder):
    """PAIRS as 'train', the first as 'test_2017_flickr'."""

    VERSION = tfds.core.Version("1.2.3")
    pairs = PAIRS

    def _info(self):
        features = tfds.features.FeaturesDict(
            {"number": tfds.features.Scalar(np.int64)}
            | {language: tfds.features.Text() for language in ("en", "de")}
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(self.pairs),
            "test_2017_flickr": self._generate_examples(self.pairs[:1]),
        }

    def _generate_examples(self, pairs):
        for i, (en, de) in enumerate(pairs):
            yield i, {"number": i, "en": en, "de": de}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A configuration for TinyPairs, which is not prepared yet."""

    def get_builder(name, *, data_dir, raw_dir):
        assert (name, raw_dir) == ("tiny_pairs", f"{tmp_path}/raw")
        assert data_dir.startswith(f"{tmp_path}/tfds")
        return TinyPairs(data_dir=data_dir, file_format="array_record")

    def prepare(builder):
        builder.download_and_prepare()

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "get_builder", get_builder, raising=False)
    monkeypatch.setattr(datasets, "prepare", prepare, raising=False)
    return make_config(dataset="tiny_pairs", data_dir="~/tfds", raw_dir="~/raw")


def test_dataset(tiny):
    source = open_source(tiny, "train")
    assert len(source) == 3
    assert [len(chunk) for chunk in source.chunks(2)] == [2, 1]
    assert read(source) == read(source, size=1)  # TFDS shuffles when it prepares
    assert sorted(read(source)) == sorted(PAIRS)
    assert source.sample(2) == read(source)[:2]
    assert source.sample(9) == read(source)
    assert source.describe() == "3 pairs of tiny_pairs/1.2.3 train (en to de)"
    assert "tensorflow" not in sys.modules


def test_extra_pairs_of_a_dataset(tiny, write):
    files = {"extra_source": write("a", b"a mouse\n"), "extra_target": write("b", b"eine Maus\n")}
    source = training_source(dataclasses.replace(tiny, **files))
    assert sorted(read(source)[:3]) == sorted(PAIRS)
    assert read(source)[3:] == [("a mouse", "eine Maus")]


def test_dataset_in_the_other_direction(tiny):
    config = dataclasses.replace(tiny, source_language="de", target_language="en")
    assert sorted(read(open_source(config, "train"))) == sorted((b, a) for a, b in PAIRS)


def test_splits_of_a_dataset(tiny):
    config = dataclasses.replace(tiny, train_split="train[1:]", test_split="test_2017_flickr")
    everything = read(open_source(config, "train[0:]"))
    assert read(open_source(config, "train")) == everything[1:]
    assert read(open_source(config, "test")) == PAIRS[:1]
    assert read(open_source(config, "test_2017_flickr")) == PAIRS[:1]
    assert len(open_source(config, "train+test_2017_flickr")) == 4


def test_a_split_that_the_dataset_lacks(tiny):
    splits = "it has: test_2017_flickr, train, and slices such as 'train[:10%]'"
    for split in ("dev", "train[", ""):
        with pytest.raises(UserError) as error:
            open_source(tiny, split)
        assert (
            one_line(error) == f"the split is {split!r}, which tiny_pairs does not have; {splits}"
        )
    with pytest.raises(UserError) as error:
        open_source(tiny, "validation")
    assert one_line(error) == (
        f"data.validation_split is 'validation', which tiny_pairs does not have; {splits}"
    )


@pytest.mark.parametrize("split", ["train[1:1]", "train[3:1]"])
def test_a_slice_without_pairs(tiny, split):
    with pytest.raises(UserError) as error:
        open_source(dataclasses.replace(tiny, train_split=split), "train")
    assert one_line(error) == (f"no sentence pairs in tiny_pairs {split}; check data.train_split")


@pytest.mark.parametrize("field", ["source_language", "target_language"])
def test_a_language_that_the_dataset_lacks(tiny, field, tmp_path):
    with pytest.raises(UserError) as error:
        open_source(dataclasses.replace(tiny, **{field: "fr"}), "train")
    assert one_line(error) == (
        f"data.{field} is 'fr', which tiny_pairs does not have; it has: de, en"
    )
    assert not (tmp_path / "tfds").exists()  # found before anything is written


def test_fingerprint_of_a_dataset(tiny, monkeypatch):
    first = open_source(tiny, "train")
    assert open_source(tiny, "train").fingerprint == first.fingerprint
    others = [
        open_source(tiny, "train[:2]"),
        open_source(tiny, "train[1:]"),
        open_source(dataclasses.replace(tiny, source_language="de", target_language="en"), "train"),
    ]
    elsewhere = dataclasses.replace(tiny, data_dir="~/tfds2")
    assert open_source(elsewhere, "train").fingerprint == first.fingerprint
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_fingerprint_sees_other_content_of_the_same_name_and_size(tiny, tmp_path, monkeypatch):
    before = open_source(tiny, "train").fingerprint
    (tmp_path / "tfds").rename(tmp_path / "before")
    monkeypatch.setattr(TinyPairs, "pairs", [*PAIRS[:2], ("two birds", "zwei Zettel")])
    assert open_source(tiny, "train").fingerprint != before


def test_line_feeds_and_invalid_bytes_of_a_dataset(tiny, monkeypatch):
    monkeypatch.setattr(TinyPairs, "pairs", [("a\nb\u2028c", b"d\xff")])
    assert read(open_source(tiny, "train")) == [("a b\u2028c", "d\ufffd")]


def test_a_dataset_with_a_missing_file(tiny, tmp_path):
    open_source(tiny, "train")
    (shard,) = (tmp_path / "tfds").rglob("*train*")
    shard.unlink()
    with pytest.raises(UserError) as error:
        open_source(tiny, "train")
    assert one_line(error) == f"cannot read {shard}: No such file or directory"


def test_fingerprint_of_a_large_file(tmp_path):
    def fingerprint(size: int, start: bytes = b"", end: bytes = b"") -> str:
        path = tmp_path / "shard"
        with path.open("wb") as file:
            file.write(start)
            file.seek(size - len(end))
            file.write(end)
            file.truncate(size)
        return _file_hash(str(path))

    size = 70 << 20
    zeros = fingerprint(size)
    assert zeros == fingerprint(size)
    others = [fingerprint(size + 1), fingerprint(size, b"x"), fingerprint(size, b"", b"x")]
    assert len({zeros, *others}) == 4


def test_mocked_data(tiny):
    with tfds.testing.mock_data(num_examples=5):
        pairs = read(open_source(tiny, "train"))
    assert len(pairs) == 5
    # Text is str there, not bytes.
    assert all(isinstance(side, str) for pair in pairs for side in pair)


def test_importing_is_quick_and_without_tensorflow():
    code = "import sys, transformer.data.sources; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    modules = run.stdout.decode().split()
    assert "transformer.data.sources" in modules
    assert not {"tensorflow", "tensorflow_datasets", "jax", "numpy"} & set(modules)
