"""BLEU by the length of the source, and other facts of translations."""

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from scripts import run, succeeded
from test_run_config import base_experiment

from transformer.reports.translation_report import BOUNDS
from transformer.reports.translations import bleu_by_length, groups, names_of, read
from transformer.runs import run_config
from transformer.system.errors import UserError

RESULTS = Path(__file__).parents[2] / "results"
SOURCES = ["a b", "a b c", "a b c d e", "a b c d e f g h"]
REFERENCES = ["v w x y", "u v w x y", "v w x y z", "s t u v w x y z"]
HYPOTHESES = ["v w x y", "u v w x", "v w x y z", "nothing of it"]


def written(folder, hypotheses=HYPOTHESES):
    config = base_experiment()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, is_tokenized=True))
    folder.mkdir()
    run_config.save(folder, config)
    (folder / "eval/test").mkdir(parents=True)
    for name, lines in (
        ("sources", SOURCES),
        ("references", REFERENCES),
        ("hypotheses", hypotheses),
    ):
        (folder / f"eval/test/{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_groups():
    assert groups(SOURCES, [2, 4, 6]) == {"1-2": [0], "3-4": [1], "5-6": [2], "7+": [3]}
    assert groups(SOURCES, [3, 5, 20]) == {"1-3": [0, 1], "4-5": [2], "6-20": [3]}


def test_names_tell_folders_apart():
    folders = [Path(name) for name in ("/x/a/run", "/y/a/run", "/y/b/run", "/y/b/other")]
    assert names_of(folders) == ["x/a/run", "y/a/run", "b/run", "other"]
    assert names_of([Path("/a"), Path("/a")]) == ["a", "a"]


def test_bleu_of_each_group(tmp_path):
    workdir = written(tmp_path / "run")
    found = bleu_by_length(run_config.load(workdir).data, read(workdir, "test"), [2, 3, 5])
    assert found["1-2"] == found["4-5"] == pytest.approx(100)
    assert 0 < found["3-3"] < 100  # too short
    assert found["6+"] < 1


def test_results_of_the_ledger(tmp_path):
    (tmp_path / "ledger").mkdir()
    recorded(tmp_path / "ledger/a.json", tmp_path / "raw")
    flags = ["--results=ledger/a.json", "--raw_dir=raw", "--data_dir=data", "--out=x.png"]
    result = succeeded(run("benchmarks/by_length.py", *flags, cwd=tmp_path))
    lines = {words[0]: words[1:] for words in map(str.split, result.out.decode().splitlines())}
    found = bleu_by_length(
        run_config.load(written(tmp_path / "run")).data, read(tmp_path / "run", "test"), BOUNDS
    )
    assert lines["a"] == [f"{bleu:.2f}" for bleu in found.values()]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def recorded(path: Path, raw: Path) -> None:
    """A result with these translations, and the data set it is of."""
    text = "".join(f"{a}\n{b}\n" for a, b in zip(SOURCES, REFERENCES, strict=True))
    hypotheses = "".join(f"{line}\n" for line in HYPOTHESES)
    result = json.loads((RESULTS / "rnn_conditional-0.json").read_text())
    entry = result["splits"]["test"] | {
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "hypotheses_sha256": hashlib.sha256(hypotheses.encode()).hexdigest(),
        "examples": len(HYPOTHESES),
    }
    path.write_text(json.dumps(result | {"splits": {"test": entry}}))
    path.with_suffix("").mkdir()
    (path.with_suffix("") / "test.txt.gz").write_bytes(gzip.compress(hypotheses.encode()))
    raw.mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for language, lines in (("en", SOURCES), ("de", REFERENCES)):
            file = raw / f"{split}.lc.norm.tok.{language}"
            file.write_text("".join(f"{line}\n" for line in lines))


def test_a_run_that_is_not_evaluated(tmp_path):
    with pytest.raises(UserError, match=r"sources.txt: No such file.* evaluate the run first"):
        read(tmp_path, "test")
