"""Several trained models as one, and files that a model is made of.

How one is restored, tests/exports and the scripts' tests show.
"""

import dataclasses
import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
from small_configs import sizes_of

from configs import demo
from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import Tokenizer
from transformer.data.wordpiece import SPECIAL, WordPiece
from transformer.models.family import build_model
from transformer.runs import run_config
from transformer.runs.integrity import seal, signed
from transformer.runs.restore import Chosen, TrainedModel, as_one, restore
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.sharding import data_mesh
from transformer.tasks.seq2seq import Seq2Seq
from transformer.tasks.task import TASKS

DEMO = Config.from_dict(demo.get_config().to_dict())


class ToyTokenizer(Tokenizer):
    sha256 = vocab_size = pieces = None

    def __init__(self, sha256, vocab_size):
        self.sha256, self.vocab_size = sha256, vocab_size

    def encode_batch(self, texts, num_threads):
        raise AssertionError("nothing is tokenised here")

    sample_batch = decode = encode_batch


def restored(workdir, tokenizer="a", params=None, language="de", steps=(1,), **changes):
    config = dataclasses.replace(
        DEMO,
        model=dataclasses.replace(DEMO.model, **changes),
        data=dataclasses.replace(DEMO.data, target_language=language),
    )
    tokenizers = Tokenizers(*2 * [ToyTokenizer(tokenizer, 23)])
    model = build_model(config.model, sizes_of(23))
    task = Seq2Seq(config.data, tokenizers, model, config.decoding, data_mesh())
    chosen = Chosen("best", list(steps), 1, False)
    return TrainedModel(Path(workdir), config, task, chosen, params, {})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (restored("y", tokenizer="b", dropout=0.3), "tokenizer_sha256 of y is ['b'] and of x"),
        (restored("y", language="fr"), "data.target_language of y is 'fr' and of x 'de'"),
        (
            restored("y", steps=[1, 2]),
            "number of checkpoints (--average_last) of y is 2",
        ),
    ],
)
def test_what_cannot_be_searched_as_one(other, message):
    with pytest.raises(UserError, match=re.escape(f"--ensemble: {message}")):
        as_one([restored("x"), restored("x"), other])


def test_an_ensemble_is_of_all_models():
    """Also of models that differ."""
    models = [restored(name, params={"w": i}, d_ff=11 + i) for i, name in enumerate("xyz")]
    found = as_one(models)
    assert found.params == [{"w": 0}, {"w": 1}, {"w": 2}]
    assert found.extra == [{}, {}, {}]
    assert found.workdir == Path("x")
    assert [other["workdir"] for other in found.provenance()["ensemble_with"]] == ["y", "z"]
    assert [other.params for other in found.others] == [{}, {}]
    assert "ensemble_with" not in models[0].provenance()


# --- Files of a model ---------------------------------------------------------------------

# A config of each task.
CONFIGS = {
    "seq2seq": "demo",
    "transduction": "algorithmic",
    "question_answering": "babi",
    "summarization": "dialogsum",
    "language_model": "lm",
    "masked_lm": "bert_tiny",
    "classification": "classification",
    "parsing": "parsing_small",
    "images": "sagan_cifar10",
}
# What comes when all files have been read. Not every model takes two vocabularies.
LOADED = r"has no checkpoint yet|tokenizer\.joint to True"
OPENED: list[str] | None = None  # the files, while somebody wants to know


@sys.addaudithook
def _note(event, arguments):
    if event == "open" and OPENED is not None and isinstance(arguments[0], str):
        OPENED.append(arguments[0])


def config_of_task(task: str) -> Config:
    module = importlib.import_module(f"configs.{CONFIGS[task]}")
    config = Config.from_dict(module.get_config().to_dict())
    assert config.task.name == task
    return config


def write_files(workdir: Path, config: Config, *, joint: bool) -> list[str]:
    """A work directory without checkpoints; gives the names of its files."""
    run_config.save(workdir, config)
    if config.task.name == "images":
        write_json(workdir / "classes.json", {"classes": ["cat", "dog"]})
    elif config.model.family == "bert":
        WordPiece([*SPECIAL, "a", "b"], lowercase=True).save(workdir)
        write_json(workdir / "labels.json", {"classes": ["cat", "dog"]})
        if not joint:
            (workdir / "vocab.txt").unlink()  # tokenizer.json serves as well
    else:
        one, other = (
            train_subword_nmt([text], num_merges=3) for text in ("abab abab", "cdcd cdcd")
        )
        Tokenizers(one, one if joint else other).save(workdir)
    return sorted(path.name for path in workdir.iterdir())


@pytest.mark.parametrize(
    ("task", "joint"), [*((task, True) for task in TASKS), ("seq2seq", False), ("masked_lm", False)]
)
def test_all_that_a_model_reads_is_sealed(tmp_path, task, joint, monkeypatch):
    """A changed, a lost or an added one is named; without a seal, as it was, the model loads."""
    config = config_of_task(task)
    names = write_files(tmp_path, config, joint=joint)
    files = run_config.files_of(config)
    seal(tmp_path, files)

    # 1. What it reads.
    opened = []
    monkeypatch.setattr(sys.modules[__name__], "OPENED", opened)
    with pytest.raises(UserError, match=LOADED):
        restore(tmp_path)
    monkeypatch.undo()
    top = os.path.realpath(tmp_path)
    found = {os.path.relpath(name, top) for name in map(os.path.realpath, opened)}
    found = {name for name in found if not name.startswith("..")} - {"files.json"}
    assert "config.json" in found
    assert len(found) > 1
    assert found <= set(files)

    # 2. Changes.
    for name in set(names) & set(files):
        content = (tmp_path / name).read_bytes()
        swapped = content.replace(b"cat", b"x").replace(b"dog", b"cat").replace(b"x", b"dog")
        for altered in {content + b" ", swapped if name == "classes.json" else b""}:
            (tmp_path / name).write_bytes(altered)
            with pytest.raises(UserError, match=rf"{re.escape(name)} (has changed|is damaged)"):
                restore(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match=rf"{re.escape(name)} is missing|not a work directory"):
            restore(tmp_path)
        (tmp_path / name).write_bytes(content)
    for name in set(files) - set(names):
        (tmp_path / name).write_bytes(b"more")
        with pytest.raises(UserError, match=rf"{re.escape(name)} was not there when"):
            restore(tmp_path)
        (tmp_path / name).unlink()

    # 3. A directory of an earlier commit, whose seal does not know the files.
    (tmp_path / "files.json").write_text(json.dumps(signed({"files": {}})))
    with pytest.raises(UserError, match=LOADED):
        restore(tmp_path)


def test_features_of_a_stranger_are_not_opened(tmp_path, monkeypatch):
    """Neither by what asks for the provenance of outputs, nor by an ensemble."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, pipe = config_of_task("images"), tmp_path / "pipe"
    os.mkfifo(pipe)  # which would wait
    config = dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, features=str(pipe)),
        data=dataclasses.replace(config.data, dataset=None, train_images="x"),
    )
    workdir = tmp_path / "run"
    write_files(workdir, config, joint=True)
    model = _without_parameters(workdir, monkeypatch)
    assert "features" not in model.task.provenance()
    assert dict(model.unknown_paths)["task.features"] == str(pipe)
    with pytest.raises(UserError, match=r"config\.json names .*task\.features=.*--trust_paths"):
        model.check_paths()
    # Who trusts it, or gives it, hears what is wrong with it.
    for options in ({"trust_paths": True}, {"overrides": {"task.features": str(pipe)}}):
        model = _without_parameters(workdir, monkeypatch, **options)
        with pytest.raises(UserError, match="pipe is a pipe or a device"):
            model.task.provenance()


def _without_parameters(workdir: Path, monkeypatch, **options) -> TrainedModel:
    monkeypatch.setattr("transformer.runs.restore._chosen", lambda *_: ([1], 1, 0))
    average = "transformer.runs.checkpoints.Checkpoints.average_params"
    monkeypatch.setattr(average, lambda *_: ({}, {}))
    return restore(workdir, **options)
