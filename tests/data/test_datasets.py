import dataclasses
import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
import urllib.error
from pathlib import Path

import pytest
from fake_downloads import texts, tgz, write_raw, zipped
from tensorflow_datasets.core.download import checksums, downloader

from configs import base
from transformer.data import datasets, splits
from transformer.data.datasets import folders, grammar_en_de, multi30k
from transformer.data.pairs import TextPairs
from transformer.data.sources import DataConfig, open_source
from transformer.system.errors import UserError

ROOT = Path(__file__).parents[2]
RAW = ROOT.parent / "shared" / "data" / "multi30k" / "raw"


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    # TFDS leaves an empty folder in the temporary directory for each builder.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# --- The grammar --------------------------------------------------------------------------


def test_the_pairs_of_the_grammar(tmp_path, monkeypatch):
    pairs = grammar_en_de.examples()
    assert len({en for en, _ in pairs}) == len(pairs) == sum(grammar_en_de.SPLITS.values())
    assert pairs[1] == ("An old mother fell asleep.", "Eine alte Mutter ist eingeschlafen.")
    # Of version 1.0.0: if this changes, so must the version.
    digest = hashlib.sha256("".join(f"{en}\t{de}\n" for en, de in pairs).encode()).hexdigest()
    assert digest == "9bc896e5c0b0781f3bb07b377477ed723f993344504226cfc7bcb514f22fa7b1"
    monkeypatch.setattr(grammar_en_de, "SPLITS", {"train": 7, "validation": 5, "test": 3})
    builder = datasets.get_builder("grammar_en_de", data_dir=str(tmp_path))
    datasets.prepare(builder)
    splits = {name: texts(builder, name, "en", "de") for name in builder.info.splits}
    assert splits == {"train": pairs[:7], "validation": pairs[7:12], "test": pairs[12:15]}


# --- Multi30k -----------------------------------------------------------------------------


@pytest.fixture
def raw(tmp_path):
    # Only "\n" ends a line: not "\r", not U+2028, all of which str.splitlines() splits at.
    return write_raw(
        tmp_path / "raw",
        {
            "train.en.gz": ["A man.", "Two\rdogs.", "A\u2028cat."],
            "train.de.gz": ["Ein Mann.", "Zwei\rHunde.", "Eine\u2028Katze."],
            "train.fr": ["Un homme.", "Deux chiens.", "Un chat."],
            "val.en.gz": ["A house."],
            "val.de.gz": ["Ein Haus."],
            "test_2017_mscoco.en.gz": ["A tree."],
            "test_2017_mscoco.fr": ["Un arbre."],
        },
    )


def multi30k_from(raw, data_dir, pair="en-de"):
    builder = datasets.get_builder(
        f"multi30k/{pair}", data_dir=str(data_dir), raw_dir=str(raw) if raw else None
    )
    datasets.prepare(builder)
    return builder


def test_multi30k_from_a_folder(raw, tmp_path):
    builder = multi30k_from(raw, tmp_path / "data")
    assert sorted(builder.info.splits) == ["train", "validation"]
    assert texts(builder, "train", "en", "de") == [
        ("A man.", "Ein Mann."),
        ("Two\rdogs.", "Zwei\rHunde."),
        ("A\u2028cat.", "Eine\u2028Katze."),
    ]
    assert texts(builder, "validation", "en", "de") == [("A house.", "Ein Haus.")]

    builder = multi30k_from(raw, tmp_path / "data", "fr-en")
    assert sorted(builder.info.splits) == ["test_2017_mscoco", "train"]
    assert texts(builder, "test_2017_mscoco", "fr", "en") == [("Un arbre.", "A tree.")]


def test_multi30k_keeps_data_of_different_folders_apart(raw, tmp_path):
    def names(builder):
        return builder.data_dir, builder.info.full_name

    first = multi30k_from(raw, tmp_path / "data")
    assert names(multi30k_from(raw, tmp_path / "data")) == names(first)
    download = datasets.get_builder("multi30k/en-de", data_dir=str(tmp_path / "data"))
    write_raw(raw, {"val.en.gz": ["A hut."]})
    changed = multi30k_from(raw, tmp_path / "data")
    assert texts(changed, "validation", "en") == [("A hut.",)]
    assert texts(first, "validation", "en") == [("A house.",)]
    for i in range(2):
        assert len({names(builder)[i] for builder in (first, download, changed)}) == 3
    assert not download.is_prepared()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"Ein Mann.\n" * 2), r"train\.en\.gz has 3 lines and .* has 2; line n"),
        (
            gzip.compress(b"Ein Mann.\nZwei \xfcble Hunde.\n"),
            r"not UTF-8: line 2, byte 6",
        ),
        (b"Ein Mann.\n", r"is damaged or not a gzip file"),
    ],
    # The time of compressing is in the bytes: without names, two workers collect different tests.
    ids=["a missing line", "not UTF-8", "not gzip"],
)
def test_multi30k_refuses_broken_files(raw, tmp_path, content, message):
    good = (raw / "train.de.gz").read_bytes()
    (raw / "train.de.gz").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        multi30k_from(raw, tmp_path / "data")
    assert "raw/train.de.gz" in str(caught.value)
    (raw / "train.de.gz").unlink()
    with pytest.raises(UserError, match=r"raw/train\.de is missing, .* leave raw_dir unset"):
        multi30k_from(raw, tmp_path)
    # Nothing half prepared is left that the next run would take for the data.
    (raw / "train.de.gz").write_bytes(good)
    assert multi30k_from(raw, tmp_path / "data").info.splits["train"].num_examples == 3


def test_multi30k_has_a_checksum_for_each_download():
    configs = [config.name for config in multi30k.Multi30k.BUILDER_CONFIGS]
    assert len(configs) == len(set(configs)) == 24
    wanted = set()
    for name in configs:
        for files in multi30k.urls(name).values():
            wanted.update(files)
    recorded = multi30k.Multi30k.url_infos
    assert set(recorded) == wanted
    assert len(wanted) == 44  # four languages in four splits, three in two; raw and tokenised
    assert all(len(info.checksum) == 64 and info.size > 0 for info in recorded.values())
    assert list(multi30k.urls("en-cs")) == [
        "train", "validation", "test_2016_flickr", "test_2018_flickr",
    ]  # fmt: skip


def test_multi30k_tokenized(tmp_path):
    for name in ("train", "test_2016_flickr"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.lc.norm.tok.{language}").write_text(f"a {language} .\n" * 3)
    builder = multi30k_from(tmp_path, tmp_path / "data", "en-de-tok")
    assert builder.info.full_name.startswith("multi30k/en-de-tok-local-")
    assert sorted(builder.info.splits) == ["test_2016_flickr", "train"]
    assert texts(builder, "train", "en", "de") == 3 * [("a en .", "a de .")]
    with pytest.raises(UserError, match=r"/train\.lc\.norm\.tok\.cs is missing"):
        multi30k_from(tmp_path, tmp_path / "data", "cs-en-tok")
    assert multi30k.urls("de-fr-tok")["test_2017_mscoco"] == [
        f"{multi30k.URL}tok/test_2017_mscoco.lc.norm.tok.{language}" for language in ("de", "fr")
    ]


@pytest.mark.skipif(not RAW.is_dir(), reason="needs ../shared/data/multi30k")
def test_multi30k_real_files():
    for name, info in multi30k.Multi30k.url_infos.items():
        path = RAW.parent / name.removeprefix(multi30k.URL)
        if path.exists():
            assert checksums.compute_url_info(path) == info
    files = folders.find(RAW, {"train": ["train.en", "train.de"]}, "")["train"]
    pairs = TextPairs(*([str(file)] for file in files))
    assert len(pairs) == 29_000
    first = "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert next(pairs.pairs())[1] == first


# --- Downloads, without a network ---------------------------------------------------------


def serve_multi30k(internet):
    for split, urls in multi30k.urls("en-de").items():
        for url in urls:
            internet[url] = gzip.compress(f"{split} {url[-5:-3]}\n".encode())


def test_multi30k_downloads(internet, tmp_path):
    serve_multi30k(internet)
    builder = multi30k_from(None, tmp_path)
    assert list(builder.info.splits) == list(multi30k.urls("en-de"))
    assert texts(builder, "test_2018_flickr", "en", "de") == [
        ("test_2018_flickr en", "test_2018_flickr de")
    ]
    assert builder.info.full_name == "multi30k/en-de/1.0.0"


def test_damaged_and_failed_downloads(internet, tmp_path):
    with pytest.raises(UserError, match=r"multi30k/en-de/1\.0\.0 could not be downloaded: no"):
        multi30k_from(None, tmp_path)
    serve_multi30k(internet)
    url = f"{multi30k.URL}raw/val.de.gz"
    dict.__setitem__(internet, url, b"not what was recorded")
    with pytest.raises(
        UserError, match=r"val\.de\.gz.*wrong checksum.*delete.*run again"
    ) as caught:
        multi30k_from(None, tmp_path)
    assert "\n" not in str(caught.value)
    serve_multi30k(internet)
    assert multi30k_from(None, tmp_path).is_prepared()


def test_failed_download_by_ftp(internet, tmp_path, monkeypatch):
    def refuse(url, **_):
        raise urllib.error.URLError(f"ftp error: no route to {url}")

    monkeypatch.setattr(downloader, "_open_url", refuse)
    builder = datasets.get_builder("wmt17_translate/zh-en", data_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"wmt17_translate/zh-en/1\.0\.0 could not be downloaded: "):
        datasets.prepare(builder)


def sgm(kind, sentence):
    return f'<{kind}set setid="newstest">\n<seg id="1">{sentence}</seg>\n</{kind}set>\n'


def test_wmt14_from_download_to_pairs_without_tensorflow(internet, tmp_path):
    imported = "tensorflow" in sys.modules
    statmt = "http://www.statmt.org"
    internet[f"{statmt}/wmt13/training-parallel-europarl-v7.tgz"] = tgz({
        "training/europarl-v7.de-en.de": "Die Sitzung ist eröffnet.\nDanke.\n",
        "training/europarl-v7.de-en.en": "The session is open.\nThank you.\n",
    })  # fmt: skip
    internet[f"{statmt}/wmt13/training-parallel-commoncrawl.tgz"] = tgz({
        "commoncrawl.de-en.de": "Ein Hotel.\n",
        "commoncrawl.de-en.en": "A hotel.\n",
    })  # fmt: skip
    internet[f"{statmt}/wmt14/training-parallel-nc-v9.tgz"] = tgz({
        "training/news-commentary-v9.de-en.de": "Steigt Gold?\n",
        "training/news-commentary-v9.de-en.en": "Will gold rise?\n",
    })  # fmt: skip
    internet["http://data.statmt.org/wmt19/translation-task/dev.tgz"] = tgz({
        "dev/newstest2013.de": "Eine Wahl.\n",
        "dev/newstest2013.en": "An election.\n",
        "dev/newstest2014-deen-src.de.sgm": sgm("src", "Zwei Züge."),
        "dev/newstest2014-deen-ref.en.sgm": sgm("ref", "Two trains."),
    })  # fmt: skip
    # The base config with it, from English to German.
    changes = {"data_dir": str(tmp_path), "dataset": "wmt14_translate/de-en"}
    config = DataConfig(**base.get_config().data.to_dict() | changes)
    pairs = {split: list(open_source(config, split).pairs()) for split in splits.SPLITS}
    assert sorted(pairs["train"]) == [
        ("A hotel.", "Ein Hotel."),
        ("Thank you.", "Danke."),
        ("The session is open.", "Die Sitzung ist eröffnet."),
        ("Will gold rise?", "Steigt Gold?"),
    ]
    assert pairs["validation"] == [("An election.", "Eine Wahl.")]
    assert pairs["test"] == [("Two trains.", "Zwei Züge.")]
    assert ("tensorflow" in sys.modules) == imported


def test_wmt17_chinese_from_download_to_pairs_without_tensorflow(internet, tmp_path):
    imported = "tensorflow" in sys.modules
    statmt = "http://data.statmt.org"
    internet[f"{statmt}/wmt17/translation-task/training-parallel-nc-v12.tgz"] = tgz({
        "training/news-commentary-v12.zh-en.zh": "黄金会涨到１万美元吗？\n谢谢。\n",
        "training/news-commentary-v12.zh-en.en": "Will gold rise to $10,000?\nThank you.\n",
    })  # fmt: skip
    united_nations = "https://storage.googleapis.com/tfds-data/downloads/uncorpus"
    internet[f"{united_nations}/UNv1.0.en-zh.tar.gz"] = tgz({
        "en-zh/UNv1.0.en-zh.zh": "第918(1994)号决议\n",
        "en-zh/UNv1.0.en-zh.en": "RESOLUTION 918 (1994)\n",
    })  # fmt: skip
    # The six parts of CWMT are zip files of one text file or several.
    names = "casia2015", "casict2011", "casict2015", "datum2015", "datum2017", "neu2017"
    cwmt = {name: ("“是”，他说。", f'"Yes", he said, {name}.') for name in names}
    for name, (zh, en) in cwmt.items():
        files = {f"{name}/0_ch.txt": zh, f"{name}/0_en.txt": en}
        if name == "casict2011":
            files |= {f"{name}/1_cn.txt": "猫", f"{name}/1_en.txt": "cat"}
        url = f"ftp://cwmt-wmt:cwmt-wmt@nlp.nju.edu.cn/parallel/{name}.zip"
        internet[url] = zipped(files)
    internet[f"{statmt}/wmt19/translation-task/dev.tgz"] = tgz({
        "dev/newsdev2017-zhen-src.zh.sgm": sgm("src", "一场选举。"),
        "dev/newsdev2017-zhen-ref.en.sgm": sgm("ref", "An election."),
        "dev/newstest2017-zhen-src.zh.sgm": sgm("src", "两列火车。"),
        "dev/newstest2017-zhen-ref.en.sgm": sgm("ref", "Two trains."),
    })  # fmt: skip
    changes = {
        "dataset": "wmt17_translate/zh-en",
        "target_language": "zh",
        "data_dir": str(tmp_path),
    }
    config = DataConfig(**base.get_config().data.to_dict() | changes)
    pairs = {split: list(open_source(config, split).pairs()) for split in splits.SPLITS}
    assert sorted(pairs["train"]) == sorted([
        ("Will gold rise to $10,000?", "黄金会涨到１万美元吗？"),
        ("Thank you.", "谢谢。"),
        ("RESOLUTION 918 (1994)", "第918(1994)号决议"),
        ("cat", "猫"),
        *((en, zh) for zh, en in cwmt.values()),
    ])  # fmt: skip
    assert pairs["validation"] == [("An election.", "一场选举。")]
    assert pairs["test"] == [("Two trains.", "两列火车。")]
    turned = dataclasses.replace(config, source_language="zh", target_language="en")
    assert list(open_source(turned, "test").pairs()) == [("两列火车。", "Two trains.")]
    assert ("tensorflow" in sys.modules) == imported


# --- By name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grammar_de_en", r"unknown dataset 'grammar_de_en'; did you mean 'grammar_en_de'"),
        ("wmt41_translate/de-en", r"unknown dataset 'wmt41_translate'; did you mean 'wmt1"),
        (
            "zz",
            r"unknown dataset 'zz'; choose one of algorithmic, babi, grammar_en_de, multi30k, tato",
        ),
        ("multi30k/en-ed", r"unknown dataset 'multi30k/en-ed'; did you mean 'multi30k/en-de'"),
        ("wmt14_translate/en-de", r"did you mean 'wmt14_translate/de-en'"),
        ("wmt14_translate", r"needs a config; choose one of wmt14_translate/cs-en, wmt14_tr"),
        (
            "grammar_en_de/de",
            r"unknown dataset 'grammar_en_de/de'; did you mean 'grammar_en_de'",
        ),
        ("", r"'' is no name of a dataset"),
        ("huggingface:x/y", r"'huggingface:x/y' is no name of a dataset"),
        ("../x", r"'../x' is no name of a dataset"),
    ],
)
def test_unknown_names(tmp_path, name, message):
    with pytest.raises(UserError, match=message) as caught:
        datasets.get_builder(name, data_dir=str(tmp_path))
    assert "\n" not in str(caught.value)


def test_raw_dir_is_for_multi30k(tmp_path, raw):
    for name in ("grammar_en_de", "wmt14_translate/de-en"):
        with pytest.raises(UserError, match="does not read raw_dir"):
            datasets.get_builder(name, data_dir=str(tmp_path), raw_dir=str(raw))


def test_data_in_a_format_for_tensorflow(raw, tmp_path):
    info = Path(multi30k_from(raw, tmp_path).data_dir, "dataset_info.json")
    content = json.loads(info.read_text())
    info.write_text(json.dumps(content | {"fileFormat": "tfrecord"}))
    with pytest.raises(UserError, match="in a format that needs TensorFlow"):
        multi30k_from(raw, tmp_path)
    info.unlink()
    with pytest.raises(UserError, match="holds no complete dataset; delete it"):
        multi30k_from(raw, tmp_path)


def test_a_builder_made_before_another_process_has_prepared(raw, tmp_path):
    early = datasets.get_builder("multi30k/en-de", data_dir=str(tmp_path), raw_dir=str(raw))
    multi30k_from(raw, tmp_path)
    datasets.prepare(early)
    assert early.info.splits["train"].num_examples == 3
    assert texts(early, "validation", "en") == [("A house.",)]


def test_what_a_killed_process_has_left_is_removed(raw, tmp_path):
    data = {"data_dir": str(tmp_path), "raw_dir": str(raw)}
    script = f"""if True:
        import os
        from transformer.data import datasets, sources
        builder = datasets.get_builder("multi30k/en-de", **{data!r})
        builder._download_and_prepare = lambda *_, **__: os._exit(9)
        datasets.prepare(builder)
    """
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 9
    builder = datasets.get_builder("multi30k/en-de", **data)
    folder = builder.data_path.parent
    assert [path.name for path in folder.iterdir()] != []
    datasets.prepare(builder)
    assert [path.name for path in folder.iterdir()] == [builder.data_path.name]


@pytest.mark.slow
def test_two_processes_may_prepare_at_once_and_none_needs_tensorflow(tmp_path):
    script = f"""if True:
        import sys
        from transformer.data import datasets, sources
        builder = datasets.get_builder("grammar_en_de", data_dir={str(tmp_path)!r})
        datasets.prepare(builder)
        assert len(builder.as_data_source("train")) == 20_000
        datasets.get_builder("wmt14_translate/de-en", data_dir={str(tmp_path)!r})
        assert "tensorflow" not in sys.modules
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=-1, stderr=-2)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs == ["", ""]  # and TFDS says nothing
    assert [path.name for path in (tmp_path / "grammar_en_de").iterdir()] == ["1.0.0"]
