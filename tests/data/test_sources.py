import dataclasses
import gzip
import math
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer.data import datasets
from transformer.data.cleaning import Cleaning
from transformer.data.pairs import PairSource, TextPairs
from transformer.data.sources import (
    Corpus,
    DataConfig,
    DatasetPairs,
    _file_hash,
    open_source,
    training_parts,
    training_source,
)
from transformer.system.errors import UserError

PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("two birds", "zwei V\u00f6gel")]


def make_config(**changes) -> DataConfig:
    needed = [field.name for field in dataclasses.fields(DataConfig) if not field.kw_only]
    fields = dict.fromkeys(needed) | {
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


def test_text_files(write):
    en = write("a.en.gz", b"a dog\na cat\ntwo birds\n")
    de = write("a.de", "ein Hund\neine Katze\nzwei V\u00f6gel\n".encode())
    source = TextPairs([en], [de])
    assert len(source) == 3
    assert list(source.chunks(2)) == [PAIRS[:2], PAIRS[2:]]
    assert list(source.chunks(3)) == [PAIRS]
    assert list(source.chunks(2)) == [PAIRS[:2], PAIRS[2:]]  # again from the start
    assert source.describe() == f"3 pairs of {en} and {de}"


def test_fingerprint_is_of_the_content(write):
    a, b = write("a", b"one\ntwo\n"), write("b", b"1\n2\n")
    fingerprint = TextPairs([a], [b]).fingerprint
    assert len(fingerprint) == 64
    copy = TextPairs([write("c.gz", b"one\ntwo\n")], [write("d", b"1\n2\n")])
    assert copy.fingerprint == fingerprint
    others = [
        TextPairs([b], [a]),
        TextPairs([a], [a]),
        TextPairs([a], [write("e", b"1\n3\n")]),
        TextPairs([write("f", b"onet\nwo\n")], [b]),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 5


def test_sample_is_evenly_spaced(write):
    numbers = "".join(f"{i}\n" for i in range(10)).encode()
    source = TextPairs([write("a", numbers)], [write("b", numbers)])
    samples = {size: [int(a) for a, _ in source.sample(size)] for size in (1, 3, 4, 99)}
    assert samples == {1: [0], 3: [0, 3, 6], 4: [0, 2, 5, 7], 99: [*range(10)]}


def test_sample_over_several_chunks(write):
    numbers = "".join(f"{i}\n" for i in range(40_000)).encode()
    source = TextPairs([write("a", numbers)], [write("b", numbers)])
    assert [int(a) for a, _ in source.sample(5)] == [0, 8_000, 16_000, 24_000, 32_000]


def test_files_that_are_refused(write):
    a, b, empty = write("a", b"1\n2\n3"), write("b", b"1\n2\n"), write("c.gz", b"")
    with pytest.raises(UserError) as error:
        TextPairs([a], [b])
    assert one_line(error).startswith(f"{a} has 3 lines and {b} has 2; line n of both must ")
    with pytest.raises(UserError, match=r"c\.gz is empty; give text with"):
        TextPairs([empty], [empty])


@pytest.mark.parametrize("now", [(b"1\n", b"1\n2\n3"), (b"1\n2\n3", b""), (b"1\n", b"1\n")])
def test_files_that_change_while_they_are_read(write, now):
    a, b = write("a", b"1\n2\n3\n"), write("b", b"1\n2\n3\n")
    source = TextPairs([a], [b])
    write("a", now[0])
    write("b", now[1])
    with pytest.raises(UserError) as error:
        read(source)
    assert one_line(error) == (
        f"pairs of {a} and {b}: the text has changed while it was read; run again"
    )


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
    with pytest.raises(UserError, match=r"^no files for the validation split; give data"):
        open_source(config, "validation")


def test_configurations_that_cannot_be():
    dataset = {"dataset": "grammar_en_de"}

    def corpus(name="x", **fields):
        return dataset | {"corpora": {name: Corpus(**fields)}}

    for changes, expected in (
        ({}, "no training data; give data.train_file, or data.train_source and data.train_targ"),
        (corpus(source="a"), "data.corpora.x needs file, or source and target; give one of these"),
        (corpus(file="a", target="a"), "data.corpora.x needs file, or source and target; give o"),
        (corpus(file="a", weight=0.0), "data.corpora.x.weight is 0.0; it must be above 0 and at "),
        (corpus(file="a", weight=math.nan), "data.corpora.x.weight is nan; it must be above 0 "),
        (corpus(file="a", tag="<b t>"), "data.corpora.x.tag is '<b t>'; give a word without spa"),
        (corpus("train", file="a"), "data.corpora has 'train'; call a corpus by one word, not '"),
        (dataset | {"max_target_length": 1}, "data.max_target_length is 1; it must be at least 2"),
    ):
        with pytest.raises(UserError) as error:
            make_config(**changes)
        assert one_line(error).startswith(expected)


def test_corpora(write):
    files = {f"{kind}_{side}": write(f"{kind}.{side}", b"".join(f"{kind} {side} {i}\n".encode()
             for i in range(count)))
             for kind, count in (("train", 3), ("extra", 2), ("validation", 1))
             for side in ("source", "target")}  # fmt: skip

    def pairs(kind, count):
        return [(f"{kind} source {i}", f"{kind} target {i}") for i in range(count)]

    # 1. Without a weight, the pairs join the train split: as extra_source did.
    extra = Corpus(source=files.pop("extra_source"), target=files.pop("extra_target"))
    config = make_config(**files, corpora={"extra": extra})
    source, expected = training_source(config), pairs("train", 3) + pairs("extra", 2)
    assert [part.weight for part in training_parts(config)] == [1]
    assert source.fingerprint == "223e139d5ea7b40f6d791a41f3f71d091601973aa3941a6e8083cd47a7c1416e"
    assert len(source) == 5
    for size in (1, 2, 4, 100):
        chunks = [expected[i : i + size] for i in range(0, 5, size)]
        assert list(source.chunks(size)) == chunks
    assert list(source.pairs()) == source.sample(100) == expected
    assert source.sample(3) == [expected[0], expected[1], expected[3]]  # two of the three
    assert source.describe().startswith("3 pairs of ")
    assert ", and 2 pairs of " in source.describe()
    # What is evaluated does not have them.
    train = open_source(config, "train")
    assert read(train) == pairs("train", 3)
    assert read(open_source(config, "validation")) == pairs("validation", 1)
    with pytest.raises(UserError, match=r"no split 'extra'; there are: train, validation$"):
        open_source(config, "extra")

    # 2. With a weight, they are apart; a tag goes before what is not blank.
    path = write("bt.tsv", b"a b\tc\n \td\n")
    tsv = Corpus(file=path, source_field="1", target_field="2", weight=0.5, tag="<bt>")
    config = make_config(**files, corpora={"extra": extra, "bt": tsv})
    assert config.tags == ["<bt>"]
    parts = training_parts(config)
    assert [(part.name, part.weight, len(part.pairs)) for part in parts] == [
        ("train", 1, 5),
        ("bt", 0.5, 2),
    ]
    assert read(parts[1].pairs) == parts[1].pairs.sample(2) == [("<bt> a b", "c"), ("", "d")]
    assert parts[1].pairs.describe().endswith("bt.tsv, tagged <bt>")
    untagged = {"bt": dataclasses.replace(tsv, tag=None)}
    _, plain = training_parts(make_config(**files, corpora=untagged))
    assert plain.pairs.fingerprint != parts[1].pairs.fingerprint

    # 3. Corpora with weights are enough.
    held_out = {name: path for name, path in files.items() if name.startswith("validation")}
    config = make_config(**held_out, corpora={"bt": tsv})
    assert [part.name for part in training_parts(config)] == ["bt"]
    wrong = {"bt": dataclasses.replace(tsv, target_field="3")}
    with pytest.raises(
        UserError, match=r"no field '3' \(data.corpora.bt.target_field\); it has: 1"
    ):
        list(training_source(make_config(**held_out, corpora=wrong)).pairs())


def test_files_may_move_and_are_not_recorded():
    metadata = {field.name: field.metadata for field in dataclasses.fields(DataConfig)}
    places = {name for name in metadata if name.endswith(("_dir", "_file", "_source", "_target"))}
    assert len(places) == 11
    for name, flags in metadata.items():
        expected = {"may_change": True, "recorded": False} if name in places else {}
        assert flags.items() >= expected.items()
        others = "bleu_tokenizer", "source_field", "target_field", "has_header", "dataset"
        others += "train_split", "validation_split", "test_split"
        others += (*(field.name for field in dataclasses.fields(Cleaning)),)
        assert bool(flags) == (name in places or name in others)


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

    def prepare(builder, raw_dir=None):
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


def test_splits_and_languages_of_a_dataset(tiny):
    changes = {"train_split": "train[1:]", "test_split": "test_2017_flickr"}
    config = dataclasses.replace(tiny, source_language="de", target_language="en", **changes)
    everything = read(open_source(config, "train[0:]"))
    assert sorted(everything) == sorted((b, a) for a, b in PAIRS)
    assert read(open_source(config, "train")) == everything[1:]
    assert read(open_source(config, "test")) == [PAIRS[0][::-1]]
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


def test_a_language_that_the_dataset_lacks(tiny, tmp_path):
    for language in ("fr", "number"):  # the latter is no text
        with pytest.raises(UserError) as error:
            open_source(dataclasses.replace(tiny, target_language=language), "train")
        expected = f"tiny_pairs has no {language!r} (data.target_language); it has: de, en"
        assert one_line(error) == expected
    assert not (tmp_path / "tfds").exists()  # found before anything is written
    with pytest.raises(UserError, match=r"^no sentence pairs in tiny_pairs train\[3:1\]; check da"):
        open_source(dataclasses.replace(tiny, train_split="train[3:1]"), "train")


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
    columns = {"source_language": "en", "target_language": "de"}
    assert DatasetPairs(tiny, "train", columns).fingerprint == first.fingerprint
    marked = DatasetPairs(tiny, "train", columns, lambda text: text.replace("\n", " <n> "))
    assert marked.fingerprint != first.fingerprint


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


def test_importing_is_quick_and_without_tensorflow():
    code = "import sys, transformer.data.sources; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    modules = run.stdout.decode().split()
    assert "transformer.data.sources" in modules
    assert not {"tensorflow", "tensorflow_datasets", "jax", "numpy"} & set(modules)
