import contextlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import forget, running, table, translations
from huggingface_hub import constants
from pyarrow import parquet

from transformer.data import hub
from transformer.data.documents import read_documents
from transformer.data.hub import layout, open_hub
from transformer.data.labelled_text import read_examples
from transformer.data.sources import training_source
from transformer.data.summaries import open_summaries
from transformer.runs.run_config import Config
from transformer.system.errors import UserError

README = """---
license: unknown
configs:
- config_name: de-en
  default: true
  data_files:
  - split: train
    path: de-en/train-*
  - {split: test, path: [de-en/t1.parquet, "de-en/**/t2.parquet"]}
- config_name: fr-en
  data_dir: fr-en
  data_files: "*.parquet"
- config_name: table
  data_files: {train: table.csv}
---
# WMT
"""


@pytest.mark.parametrize(
    ("readme", "paths", "expected"),
    [
        ("", "x.csv README.md a/b/c/train.parquet", {}),
        (
            "# A text",
            "data/train-00000-of-00002-0a1b.parquet data/train-00001-of-00002-0a1b.parquet "
            "data/dev.parquet",
            {"default": {"dev": 1, "train": 2}},
        ),
        (
            "---\nlicense: mit\n---\n",
            "de-en/train-00000-of-00001.parquet default/train/0000.parquet "
            "default/train/0001.parquet default/partial-test/0000.parquet validation/0.parquet",
            {
                "de-en": {"train": 1},
                "default": {"partial-test": 1, "train": 2, "validation": 1},
            },
        ),
        (
            README,
            "de-en/train-1.parquet de-en/train-0.parquet de-en/train-x/deep.parquet table.csv "
            "de-en/t1.parquet de-en/t2.parquet de-en/a/t2.parquet fr-en/a.parquet other.parquet",
            {
                "de-en": {"train": 2, "test": 3},
                "default": {"train": 2, "test": 3},
                "fr-en": {"train": 1},
            },
        ),
    ],
)
def test_where_the_files_of_a_split_are(readme, paths, expected):
    found = layout(paths.split(), readme, "hf:x")
    assert {c: {s: len(files) for s, files in x.items()} for c, x in found.items()} == expected
    assert all(x["train"] == sorted(x["train"]) for x in found.values() if "train" in x)


@pytest.fixture
def wmt(the_hub):
    """A repository with a README and three files; its commit."""
    files = {"README.md": README, "de-en/t1.parquet": translations(("A", "B"))}
    for i in range(2):
        files[f"de-en/train-{i:05}-of-00002.parquet"] = translations((f"en {i}", f"de {i}"))
    return the_hub.add("wmt/wmt14", files)


def rows(files):
    return [row for file in files for row in parquet.read_table(file)["translation"].to_pylist()]


def test_a_data_set_is_downloaded_once_and_pinned(the_hub, wmt, monkeypatch):
    found = open_hub("hf:wmt/wmt14:de-en")
    assert rows(found.files("train", "data.train_split")) == [
        {"en": "en 0", "de": "de 0"},
        {"en": "en 1", "de": "de 1"},
    ]
    assert hub.commits == {"hf:wmt/wmt14:de-en": wmt}
    assert len(the_hub.downloads()) == 2  # not the test split

    # 1. Another commit: a run that has begun stays at its own; the next one takes the new one.
    newer = the_hub.add("wmt/wmt14", {"data/test.parquet": translations(("new", "neu"))})
    again = open_hub("hf:wmt/wmt14:de-en")
    assert len(again.files("test", "")) == 1
    assert len(the_hub.downloads()) == 3
    forget()
    assert rows(open_hub("hf:wmt/wmt14").files("test", "")) == [{"en": "new", "de": "neu"}]
    assert hub.commits == {"hf:wmt/wmt14": newer}

    # 2. Without the hub: the cache; a pinned revision is the old one.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name, split, text in (("hf:wmt/wmt14", "test", "new"), (f"@{wmt}", "train", "en 0")):
        forget()
        name = name if name.startswith("hf:") else f"hf:wmt/wmt14:de-en{name}"
        assert rows(open_hub(name).files(split, ""))[0]["en"] == text
    forget()
    with pytest.raises(UserError, match=r"wmt/wmt15 is not whole in the cache .* HF_HUB_OFFLINE"):
        open_hub("hf:wmt/wmt15")


def test_a_busy_hub_and_a_cut_connection_are_survived(the_hub, wmt, capsys, monkeypatch):
    told = {}

    @contextlib.contextmanager
    def signs_of_life(work, words):
        yield
        told[work] = words()

    monkeypatch.setattr(hub, "signs_of_life", signs_of_life)
    the_hub.busy = 2
    the_hub.cut.add("de-en/train-00000-of-00002.parquet")
    assert len(rows(open_hub("hf:wmt/wmt14:de-en").files("train", ""))) == 2
    assert capsys.readouterr().err.count("warning: the hub is busy; wmt/wmt14 is tried again") == 2
    ranges = [headers["range"] for _, _, headers in the_hub.asked if "range" in headers]
    assert len(ranges) == 1
    assert not ranges[0].startswith("bytes=0-")  # it went on where it was
    assert re.match(r"(\S+B) of \1 downloaded, ", told["downloading wmt/wmt14"])
    forget()
    the_hub.add("wmt/wmt15", {"train.parquet": translations(("a", "b"))})
    the_hub.busy = 1000
    with pytest.raises(UserError, match=r"wmt/wmt15 could not be downloaded: the hub answers 503"):
        open_hub("hf:wmt/wmt15")


def test_a_damaged_file_is_named(the_hub, wmt):
    the_hub.damaged.add("de-en/t1.parquet")
    with pytest.raises(
        UserError, match=r"blobs/[0-9a-f]{64} is damaged: .* delete it and run"
    ) as e:
        open_hub("hf:wmt/wmt14:de-en").files("test", "")
    the_hub.damaged.clear()
    os.remove(str(e.value).partition(" is damaged")[0])
    assert rows(open_hub("hf:wmt/wmt14:de-en").files("test", "")) == [{"en": "A", "de": "B"}]


def test_the_hubs_own_parquet_is_used_where_there_is_no_other(the_hub):
    the_hub.add("old/script", {"README.md": "", "script.py": "1", "x/train.csv": "a"})
    with pytest.raises(
        UserError, match=r"hf:old/script:x has no Parquet files in this revision, n"
    ):
        open_hub("hf:old/script:x")
    files = {"x/train/0000.parquet": translations(("c", "d"))}
    commit = the_hub.add("old/script", files, ref="refs/convert/parquet")
    assert rows(open_hub("hf:old/script:x").files("train", "")) == [{"en": "c", "de": "d"}]
    assert hub.commits["hf:old/script:x"] == commit
    assert open_hub(f"hf:old/script:x@{commit}").files("train", "")


def test_a_token_opens_a_private_data_set_and_is_not_shown(the_hub, monkeypatch, capfd):
    the_hub.add("me/mine", {"train.parquet": translations(("a", "b"))})
    the_hub.private.add("me/mine")
    message = (
        r"the hub shows no data set me/mine; check the name, and for a private one .* HF_TOKEN"
    )
    for token in (None, "hf_wrong_secret_"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(UserError, match=message) as error:
            open_hub("hf:me/mine")
        assert "secret" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (file,) = open_hub("hf:me/mine").files("train", "")
    assert "secret" not in "".join(capfd.readouterr())
    assert {path.startswith("/cdn/"): "authorization" in h for _, path, h in the_hub.asked} == {
        False: True,
        True: False,  # a signed address needs none
    }
    kept = [x.read_bytes() for x in Path(file).parents[3].rglob("*") if x.is_file()]
    assert not any(b"hf_secret" in content for content in kept)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        (
            "hf:wmt/wmt14:de-em",
            "",
            r"hf:wmt/wmt14:de-em has no config 'de-em'; did you mean 'de-en'",
        ),
        ("hf:wmt/two", "", r"hf:wmt/two has no config 'default'; choose one of a, b"),
        (
            "hf:wmt/wmt14:de-en",
            "tran",
            r"data.train_split is 'tran', which .* did you mean 'train'",
        ),
        ("hf:wmt/wmt14@v9", "", r"the hub has no revision 'v9' of wmt/wmt14"),
        ("hf:wmt/wmt41:de-en", "", r"the hub shows no data set wmt/wmt41; check the name"),
        ("hf:wmt/gated", "train", r"the data set wmt/gated is gated: accept its terms"),
        ("hf:wmt/readme", "", r"hf:wmt/readme: the metadata of README.md is damaged \("),
        (
            "hf:wmt/part",
            "train",
            r"train-00000-of-00002.parquet is one of 2 files of train, and th",
        ),
        (
            "hf://datasets/wmt/wmt14",
            "",
            r"name a data set of the hub as hf:REPOSITORY:CONFIG, such",
        ),
        ("hf:a--b/c", "", r"'a--b/c' is no name of a data set"),
    ],
)
def test_errors_are_one_line(the_hub, wmt, name, split, message):
    some = translations(("a", "b"))
    the_hub.add("wmt/two", {"a/train.parquet": some, "b/train.parquet": some})
    the_hub.add("wmt/gated", {"train.parquet": some})
    the_hub.add("wmt/readme", {"README.md": "---\nconfigs: [a: b: c]\n---\n"})
    the_hub.add("wmt/part", {"data/train-00000-of-00002.parquet": some})
    the_hub.gated.add("wmt/gated")
    with pytest.raises(UserError, match=message) as error:
        open_hub(name).files(split, "data.train_split")
    assert "\n" not in str(error.value)


def test_a_copy_of_a_repository(the_hub, tmp_path):
    folder = tmp_path / "copy"
    (folder / "de-en").mkdir(parents=True)
    (folder / "de-en" / "train.parquet").write_bytes(translations(("a", "b")))
    (folder / "de-en" / "test.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    found = open_hub("hf:wmt/wmt14:de-en", str(folder))
    assert found.files("train", "") == [str(folder / "de-en" / "train.parquet")]
    assert not hub.commits
    assert not the_hub.asked
    for split, name, message in [
        ("test", folder, r"test.parquet only points to a file of Git LFS; run git lfs pull there"),
        ("x", folder / "de-en", r"hf:wmt/wmt14:de-en has no config 'de-en'; choose one of default"),
        ("x", tmp_path / "none", r"data.raw_dir: there is no folder .*none"),
        (
            "x",
            tmp_path,
            r"hf:wmt/wmt14:de-en has no Parquet files in .*; convert it, or give files",
        ),
    ]:
        with pytest.raises(UserError, match=message):
            open_hub("hf:wmt/wmt14:de-en", str(name)).files(split, "")


# --- The data of tasks --------------------------------------------------------------------

PAIRS = [("a dog", "ein Hund"), ("two\ncats", "zwei Katzen")]


def data_of(module, **changes):
    """The data section of a config file."""
    sections = importlib.import_module(f"configs.{module}").get_config().to_dict()
    sections["data"] |= changes
    return Config.from_dict(sections).data


def test_every_task_reads_from_the_hub(the_hub, tmp_path):
    # 1. Pairs: the struct `translation` is found by its languages.
    the_hub.add("wmt/wmt14", {"de-en/train-00000-of-00001.parquet": translations(*PAIRS)})
    data = data_of("base")
    assert data.dataset == "hf:wmt/wmt14:de-en"
    source = training_source(data)
    assert list(source.pairs()) == [("a dog", "ein Hund"), ("two cats", "zwei Katzen")]
    assert source.describe() == "2 records of hf:wmt/wmt14:de-en train"
    turned = data_of("base", source_language="de", target_language="en")
    assert next(training_source(turned).pairs()) == ("ein Hund", "a dog")
    with pytest.raises(UserError, match=r"no field 'fr' \(data.target_language\); it has: tr"):
        list(training_source(data_of("base", target_language="fr")).pairs())

    # 2. A copy of the repository gives the same data.
    (file,) = (tmp_path / "cache").rglob("snapshots/*/*/train*")
    copy = data_of("base", raw_dir=str(file.parents[1]))
    assert training_source(copy).fingerprint == source.fingerprint

    # 3. Labelled text, summaries, plain text.
    glue = table({"label": ["neg", "pos"]}, sentence=["good", "bad"], label=[1, 0])
    the_hub.add("nyu-mll/glue", {"sst2/train-00000-of-00001.parquet": glue})
    fields = {"text_field": "sentence", "label_field": "label"}
    labelled = data_of("classification", dataset="hf:nyu-mll/glue:sst2", **fields)
    assert read_examples(labelled, "train") == [("good", None, "pos"), ("bad", None, "neg")]
    hidden = table({"label": ["neg", "pos"]}, sentence=["?"], label=[-1])
    (tmp_path / "hidden.parquet").write_bytes(hidden)
    files = {"train_file": str(tmp_path / "hidden.parquet")}
    with pytest.raises(UserError, match=r"row 1 has no label in 'label'; remove the line"):
        read_examples(data_of("classification", **files, **fields), "train")
    news = table(article=["A\nB"], highlights=["C"])
    the_hub.add("abisee/cnn", {"3.0.0/train-00000-of-00001.parquet": news})
    summaries = data_of("summarization", dataset="hf:abisee/cnn:3.0.0")
    assert list(open_summaries(summaries, "train").pairs()) == [("A B", "C")]
    the_hub.add("some/books", {"train.parquet": table(text=["one\ntwo", "three"])})
    for module in ("lm", "bert_base"):
        books = data_of(module, dataset="hf:some/books")
        assert list(read_documents(books.texts("train"))) == [["one", "two"], ["three"]]
        with pytest.raises(UserError, match=r"plain text is read from files, or from the hub"):
            data_of(module, dataset="books")


def test_the_variables_of_the_client_are_honoured(tmp_path):
    script = (
        "from transformer.data.hub import open_hub; print(open_hub('hf:a/b').files('train', ''))"
    )
    with running() as server:
        server.add("a/b", {"train.parquet": translations(("a", "b"))})
        variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", script]
        result = subprocess.run(command, env=os.environ | variables, capture_output=True)
    expected = str(tmp_path / "home" / "hub" / "datasets--a--b" / "snapshots")
    assert expected in result.stdout.decode(), result.stderr.decode()
