"""Every mistake of a user ends with exit code 2 and one line on standard error."""

import contextlib
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scripts import (
    ROOT,
    Result,
    assert_refused,
    environment,
    run,
    succeeded,
    toy_fields,
    toy_flags,
    write_toy,
)

from configs import base
from transformer.data.labelled_images import load_arrays
from transformer.runs import run_config, train, trusted_paths
from transformer.runs.restore import restore
from transformer.runs.run_config import Config
from transformer.system.errors import UserError

TRAIN = ["data_train_source", "data_train_target"]
VALIDATION = ["data_validation_source", "data_validation_target"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A directory of files, good and bad, in which tests leave nothing."""
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory, train=97, validation=5)
    (directory / "folder").mkdir()
    (directory / "thesis").mkdir()
    (directory / "thesis" / "chapter1.txt").write_text("years of work")
    (directory / "short.de").write_text("Eno\n" * 96)
    (directory / "latin1.en").write_bytes("one\nfünf\nthree\n".encode("latin-1"))
    (directory / "blank").write_text(" \n" * 97)
    (directory / "raises.py").write_text("1 / 0\n")
    (directory / "nothing.py").write_text("")
    (directory / "number.py").write_text("def get_config():\n    return 3\n")
    (directory / "notes.txt").write_text("not a model")
    os.mkfifo(directory / "pipe.json")
    return directory


@pytest.fixture(scope="module")
def trained(toy, toy_run) -> Path:
    """The directory of a run of two steps, with a checkpoint of each."""
    copy = shutil.copytree(toy_run / "run", toy / "run")
    with contextlib.chdir(toy):  # as if it had been trained here
        trusted_paths.remember(run_config.load(copy))
    yield copy
    shutil.rmtree(toy / "run")


def tree(directory: Path) -> list[Path]:
    # The token cache may well be there: it is kept for the next start.
    return sorted(
        path.relative_to(directory) for path in directory.rglob("*") if "data" not in path.parts
    )


# --- train.py -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        # The configuration.
        ({"model_norm": "middle"}, ["model.norm is 'middle'", "one of: post, pre"]),
        (
            {"training_seed": 2**32},
            ["training.seed is 4294967296; it must be at least 0 and below"],
        ),
        ({"training_steps": 10**30}, [f"training.steps is {10**30}; it must be "]),
        ({"model_d_model": 524288}, ["parameters, which need at least"]),
        (
            {"model_num_encoder_layers": 10**8},
            ["num_encoder_layers is 100000000; it must be at least 1 and below 1001"],
        ),
        ({"model_dropout": math.nan}, ["model.dropout is nan"]),
        ({"tokenizer_joint": False}, ["share_embeddings is 'all'", "tokenizer.joint"]),
        # Data.
        ({"data_train_source": "no.en"}, ["there is no file no.en (looked up in "]),
        ({"data_train_source": "folder"}, ["folder is not a file"]),
        ({"data_train_target": "short.de"}, ["train.en has 97 lines", "short.de has 96"]),
        ({"data_train_source": "latin1.en"}, ["latin1.en is not UTF-8: line 2, byte 2"]),
        (dict.fromkeys(TRAIN, "blank"), ["vocab_size is 300"]),
        ({"data_max_source_length": 2}, ["no pair is left", "data.max_source_length"]),
        (
            dict.fromkeys(TRAIN + VALIDATION, "") | {"data_dataset": "grammer_en_de"},
            ["grammar_en_de"],
        ),
        ({"tokenizer_vocab_size": 5000}, ["vocab_size is 5000", "or less"]),
        ({"tokenizer_vocab_size": 261}, ["vocab_size is 261", "or more"]),
        ({"tokenizer_source_model": "no.model"}, ["cannot read", "no.model"]),
        ({"tokenizer_source_model": "notes.txt"}, ["notes.txt is not a SentencePiece"]),
        # The work directory.
        ({"workdir": "notes.txt"}, ["notes.txt", "give another --workdir"]),
        ({"workdir": "thesis"}, ["thesis is not empty", "give another --workdir"]),
        ({"workdir": "notes.txt/run"}, ["notes.txt/run"]),
    ],
    ids=lambda x: str(x)[:60] if isinstance(x, dict) else "",
)
def test_training(toy, tmp_path, monkeypatch, fields, parts):
    """Without a process of its own."""
    monkeypatch.chdir(toy)
    monkeypatch.setattr(train, "go_on_without_readers", lambda: None)
    before, workdir = tree(toy), Path(fields.get("workdir", tmp_path / "new"))
    config = base.get_config().to_dict()
    for name, value in toy_fields(**fields).items():
        if name != "workdir":
            section, _, field = name.partition(".")
            config[section][field] = value
    with pytest.raises(UserError) as refused:
        train.run(Config.from_dict(config), workdir)
    assert all(part in str(refused.value) for part in parts), refused.value
    assert tree(toy) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config.model.num_head=3"], ["did you mean 'model.num_heads'?"]),
        (["--config.tokenizer.joint=maybe"], ["joint", "maybe"]),
        (["--config.model=3"], ["model"]),
        (["--config.data.corpora.bt.weight=2"], ["does not set data.corpora.bt.weight; set it"]),
        (["--config.data.train_source=no.en"], ["there is no file no.en (looked up in "]),
        (["--profile=100"], ["--profile=100 must be START:STOP"]),
        (["--config=raises.py"], ["config file", "ZeroDivisionError"]),
        (["--config=nothing.py"], ["config file", "get_config"]),
        (["--config=number.py"], ["get_config of number.py returns no ConfigDict"]),
        (["--learning_rate=3"], ["learning_rate"]),
        (["and", "more"], ["unexpected argument 'and'"]),
        (["--workdir="], ["--workdir is empty"]),
    ],
    ids=lambda x: " ".join(x) if x and x[0][0] in "-a" else "",
)
def test_flags_of_train(toy, tmp_path, arguments: Sequence[str], parts: Sequence[str]):
    before = tree(toy)
    options = [*toy_flags(), f"--workdir={tmp_path / 'new'}"]
    if arguments[0].startswith("--config="):
        options = options[-1:]
    assert_refused(run("train.py", *options, *arguments, cwd=toy), *parts)
    assert tree(toy) == before
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_another_config(trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    arguments = toy_flags(training_seed=3, model_dropout=0.3, training_steps=5)
    assert_refused(
        run("train.py", *arguments, "--workdir=run", cwd=trained.parent),
        "run holds a run with another config",
        "(model.dropout was 0.1, is 0.3; training.seed was 0, is 3)",
        "give another --workdir",
    )
    after = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert after == before


# --- evaluate.py and translate.py ---------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "arguments", "parts"),
    [
        ("evaluate", [], ["--workdir is missing"]),
        ("translate", ["--workdir=nowhere"], ["nowhere is not a work directory"]),
        ("evaluate", ["--workdir=thesis"], ["thesis is not a work directory", "config.json"]),
        ("translate", ["--workdir=notes.txt"], ["notes.txt is not a work directory"]),
        ("evaluate", ["--workdir=run", "--checkpoint=worst"], ["checkpoint", "best", "average"]),
        (
            "translate",
            ["--workdir=run", "--checkpoint=average", "--average_last=3"],
            ["--average_last=3 is more than the last 2 checkpoints of run"],
        ),
        (
            "translate",
            ["--workdir=run", "--checkpoint=ema"],
            ["run has no moving average, since its training.ema is 0"],
        ),
        (
            "translate",
            ["--workdir=run", "--mbr=9"],
            ["decoding.mbr asks for 9 candidates, and decoding.beam_size is"],
        ),
        ("evaluate", ["--workdir=run", "--average_last=0"], ["average_last"]),
        (
            "translate",
            ["--workdir=run", "--average_last=2"],
            ["--average_last=2 is for --checkpoint=average", "this is --checkpoint=best"],
        ),
        ("evaluate", ["--workdir=run", "--beam_size=0"], ["beam_size is 0"]),
        ("translate", ["--workdir=run", "more"], ["unexpected argument 'more'"]),
        (
            "evaluate",
            ["--workdir=run", "--target_language=fr"],
            ["--target_language names a language, and the vocabulary has no tokens for languages"],
        ),
        # Text to translate.
        ("translate", ["--workdir=run", "--input=no.en"], ["cannot read no.en: No such file"]),
        ("translate", ["--workdir=run", "--input=validation.en", "--output=folder"], ["folder"]),
        (
            "translate",
            ["--workdir=run", "--input=latin1.en", "--output=notes.txt/x"],
            ["notes.txt/x"],
        ),
        # A split is known before others are translated, and so is where the record goes.
        (
            "evaluate",
            ["--workdir=run", "--split=validatoin"],
            ["no split 'validatoin'", "there are: train, validation"],
        ),
        (
            "evaluate",
            ["--workdir=run", "--split=validation,test", "--record=x.json"],
            ["no files for the test split"],
        ),
        (
            "evaluate",
            ["--workdir=run", "--split=validation", "--record=pipe.json"],
            ["--record=pipe.json is no file; name a new one"],
        ),
        (
            "evaluate",
            ["--workdir=run", "--split=validation", "--record=run/config.json"],
            ["run/config.json is no result of this ledger"],
        ),
    ],
)
def test_a_trained_model(trained, script, arguments, parts):
    before = tree(trained.parent)
    result = run(f"{script}.py", *arguments, cwd=trained.parent)
    assert_refused(result, *parts)
    assert result.out == b""
    assert tree(trained.parent) == before


def test_a_run_that_is_not_whole(trained, tmp_path):
    def refused(part: str):
        return pytest.raises(UserError, match=part)

    for name in ("config.json", "tokenizer.model"):
        shutil.copy(trained / name, tmp_path)
    with refused("has no checkpoint"):
        restore(tmp_path)
    (tmp_path / "tokenizer.model").write_text("not a model")
    with refused(r"tokenizer\.model is not a Sentence"):
        restore(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    with refused("no tokenizer in"):
        restore(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with refused(r"config\.json is damaged"):
        restore(tmp_path)


# --- A stranger's work directory ----------------------------------------------------------


@pytest.fixture
def strangers(trained, tmp_path) -> Path:
    """A folder with a work directory of somebody who likes to see your files."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    content = json.loads((workdir / "config.json").read_text())
    places = {"test_source": "/etc/hostname", "test_target": "/etc/hostname", "data_dir": "new"}
    content["data"] |= places
    (workdir / "config.json").write_text(json.dumps(content))
    (workdir / "files.json").unlink()  # which would say that the config has been changed
    return tmp_path


def test_paths_and_links_of_a_stranger_are_not_used(strangers):
    before = tree(strangers)
    arguments = ["--workdir=run", "--split=test"]
    result = run("evaluate.py", *arguments, "--record=x.json", cwd=strangers)
    assert_refused(result, "run/config.json names", "and you have not trained with that; if you")
    assert tree(strangers) == before
    assert not (strangers / "new").exists()

    arguments.append("--trust_paths")
    (strangers / "elsewhere").mkdir()
    (strangers / "run" / "eval").mkdir()
    (strangers / "run" / "eval" / "test").symlink_to(strangers / "elsewhere")
    result = run("evaluate.py", *arguments, cwd=strangers)
    assert_refused(result, "run/eval/test is a link, which outputs do not follow")
    shutil.rmtree(strangers / "run" / "eval")
    (strangers / "run" / "eval").symlink_to(strangers / "elsewhere")
    assert_refused(run("evaluate.py", *arguments, cwd=strangers), "run/eval is a link")
    assert list((strangers / "elsewhere").iterdir()) == []
    # And an export does not carry away what a link leads to.
    (strangers / "secret").write_text("{}\n")
    (strangers / "run" / "metrics.jsonl").unlink()
    (strangers / "run" / "metrics.jsonl").symlink_to(strangers / "secret")
    succeeded(run("evaluate.py", "--workdir=run", "--export=mine", cwd=strangers))
    assert not (strangers / "mine" / "metrics.jsonl").exists()
    # Who trusts a stranger says so.
    (strangers / "run" / "eval").unlink()
    arguments.append("--hypotheses=/etc/hostname")
    succeeded(run("evaluate.py", *arguments, cwd=strangers))
    hostname = Path("/etc/hostname").read_text()
    assert (strangers / "run/eval/latest/sources.txt").read_text() == hostname


# --- The disk is full ---------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path):
    """full_disk(size) -> the directory of a file system of so many bytes."""
    mounted = []

    def mount(size: int) -> Path:
        directory = tmp_path / "disk"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount a small file system")
        mounted.append(directory)
        return directory

    yield mount
    for directory in mounted:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_no_space_for_the_run(toy, full_disk):
    disk = full_disk(8192)
    (disk / "filler").write_bytes(bytes(8192))
    (disk / "run").mkdir()
    arguments = toy_flags(model_d_model=62, model_d_ff=331)
    result = run("train.py", *arguments, f"--workdir={disk / 'run'}", cwd=toy)
    # Threads of Orbax may complain, too; no exception passes through our main program.
    assert 'train.py", line' not in result.err
    assert result.code == 2
    (error,) = (line for line in result.err.splitlines() if line.startswith("error: "))
    assert "space" in error.lower()
    assert str(disk) in error


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_no_space_for_a_checkpoint(toy, full_disk):
    """Training goes on to its end, and waits there for space for the last checkpoint."""
    disk = full_disk(8192 + 1024 * 120)
    arguments = toy_flags(model_d_model=62, model_d_ff=331)
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments, f"--workdir={disk / 'run'}"],
        cwd=toy,
        env=os.environ | environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = []
        while not lines or not lines[-1].startswith("warning: trying again in"):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        before = "".join(lines)
        assert not list((disk / "run" / "checkpoints").iterdir())
        subprocess.run(["mount", "-o", "remount,size=32M", str(disk)], check=True)
        after = process.stderr.read()
    print(before, after)
    assert process.returncode == 0
    for step in (1, 2):
        assert f"warning: the checkpoint of step {step} could not be saved" in before
    assert "No space left on device" in before
    assert "Traceback" not in before + after
    assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["2"]
    assert len((disk / "run" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_no_space_for_a_data_set(toy, tmp_path, full_disk):
    disk = full_disk(600 * 1024)
    arguments = ["--config.data.dataset=grammar_en_de", f"--config.data.data_dir={disk}"]
    result = run("train.py", *arguments, f"--workdir={tmp_path / 'run'}", cwd=toy)
    # A slow machine gives a sign of life before.
    result = result._replace(err=re.sub(r"(?m)^preparing .*\n", "", result.err))
    assert_refused(result, "no space left for grammar_en_de/1.0.0", str(disk))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_no_space_for_the_token_cache(toy, tmp_path, full_disk):
    arguments = toy_flags(data_data_dir=full_disk(4096))
    result = run("train.py", *arguments, f"--workdir={tmp_path / 'new'}", cwd=toy)
    assert_refused(result, "no space left for the token cache")
    assert not (tmp_path / "new").exists()


NOISY = """
import warnings
import numpy as np
from pathlib import Path
from transformer.data.labelled_images import load_arrays
from transformer.runs import cli
from transformer.system.compilation import CompilationWarning
from transformer.system.errors import UserError

def main():
    load_arrays(Path("python2.npy"))
    np.float32(3e38) * np.float32(3e38)
    warnings.warn("Corrupt EXIF data.")
    {own}
    raise UserError("the words are wrong; write others")

cli.run(main)
"""


def test_warnings_of_libraries_do_not_stand_before_an_error(tmp_path):
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2L,), }".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00v\x00" + header.encode() + b"ab"
    (tmp_path / "python2.npy").write_bytes(content)
    (tmp_path / "noisy.py").write_text(NOISY.replace("{own}", ""))
    assert_refused(run(str(tmp_path / "noisy.py"), cwd=tmp_path), "the words are wrong")
    # Ours are shown.
    own = 'warnings.warn("it compiles", CompilationWarning)'
    (tmp_path / "ours.py").write_text(NOISY.replace("{own}", own))
    result = run(str(tmp_path / "ours.py"), cwd=tmp_path)
    assert result.err.split("\n")[:-1] == [
        "warning: it compiles",
        "error: the words are wrong; write others",
    ]


@pytest.mark.parametrize("name", ["objects.npy", "pickled.npz"])
def test_arrays_of_objects(name, tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "objects.npy", objects)
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match=rf"{name} cannot be .* \(it holds Python objects\)$"):
        load_arrays(tmp_path / name)


def test_without_the_server(tmp_path):
    """The same from the shell, where the scripts start themselves anew."""
    anew = os.environ | environment()
    del anew["GLIBC_TUNABLES"]
    command = [sys.executable, str(ROOT / "transformer"), "trian"]
    process = subprocess.run(command, cwd=tmp_path, env=anew, capture_output=True, text=True)
    assert_refused(Result(process.returncode, b"", process.stderr), "there is no command 'trian'")
