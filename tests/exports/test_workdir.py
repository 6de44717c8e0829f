"""Small work directories of one set of parameters; evaluate.py and train.py with them are in
test_command_line.py."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from scripts import assert_same_params
from small_configs import MODEL, PAPER, sizes_of

from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.exports.workdir import export
from transformer.models.family import build_model
from transformer.runs import init_from, provenance, run_config
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.integrity import digest, signed
from transformer.runs.restore import as_one, restore
from transformer.system.errors import UserError
from transformer.training.optimizers import make_optimizer
from transformer.training.schedules import make_schedule
from transformer.training.step import init_state

STEPS = (3, 5, 7)
CONFIG = dataclasses.replace(
    PAPER, model=MODEL, training=dataclasses.replace(PAPER.training, best_metric="nll", steps=7)
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """As training leaves it, with other parameters at each step; the best are those of step 5."""
    workdir = tmp_path_factory.mktemp("export") / "run"
    tokenizer = train_sentencepiece(["one two"], vocab_size=270, model_type="bpe")
    run_config.save(workdir, CONFIG)
    Tokenizers(tokenizer, tokenizer).save(workdir)
    (workdir / "starts.jsonl").write_text("{}\n")
    model = build_model(MODEL, sizes_of(270))
    adam = make_optimizer(CONFIG.optimizer, make_schedule(CONFIG.optimizer, MODEL.d_model))
    checkpoints = Checkpoints(workdir, keep_last=3, best_metric="nll", direction="lower")
    state = init_state(model, adam, seed=0)
    with contextlib.closing(checkpoints):
        for step in STEPS:
            params = jax.tree.map(lambda x, step=step: x + step / 7, state.params)
            state = state._replace(step=np.int32(step), params=params)
            checkpoints.save(state, {}, scheduled=True)
            checkpoints.record_scores(step, {"nll": float(step != 5)})
    return workdir


@pytest.fixture(scope="module")
def average(workdir, tmp_path_factory):
    """The export of an average."""
    average = tmp_path_factory.mktemp("exported") / "new" / "small"
    export(restore(workdir, "average", 2), average)
    return average


@pytest.mark.parametrize(("checkpoint", "average_last"), [("best", None), ("average", 2)])
def test_it_is_what_was_chosen(workdir, average, tmp_path, checkpoint, average_last):
    model = restore(workdir, checkpoint, average_last)
    assert model.chosen.steps == ([5] if checkpoint == "best" else [5, 7])
    if checkpoint == "best":
        export(model, tmp_path / "small")
    export(restore(average if average_last else tmp_path / "small", None, None), tmp_path / "again")
    small = restore(tmp_path / "again", checkpoint, average_last)
    assert_same_params(small, model)
    assert (small.config, small.chosen) == (model.config, model.chosen)
    assert small.task.tokenizers.sha256 == model.task.tokenizers.sha256
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == [
        "checkpoints", "config.json", "exported.json", "files.json", "starts.jsonl",
        "tokenizer.model",
    ]  # fmt: skip
    assert not list((tmp_path / "again").glob("checkpoints/*/opt_state"))
    assert {path.name for path in tmp_path.iterdir()} <= {"small", "again"}


@pytest.mark.parametrize(
    ("checkpoint", "average_last", "message"),
    [
        ("best", None, r"holds the average of step\(s\) 5, 7 alone; give the work directory of"),
        ("average", 3, r"holds the average of step\(s\) 5, 7 alone"),
        ("last", 2, r"--average_last=2 is for --checkpoint=average, and this is --checkpoint=last"),
    ],
)
def test_it_is_nothing_else(average, checkpoint, average_last, message):
    with pytest.raises(UserError, match=message):
        restore(average, checkpoint, average_last)
    with pytest.raises(UserError, match="small was exported without what training needs"):
        run_config.check_workdir(average, CONFIG)


def test_a_run_begins_with_it(workdir, average, tmp_path):
    def load(directory, section="model", **changes):
        training = dataclasses.replace(CONFIG.training, init_from=str(directory))
        config = dataclasses.replace(CONFIG, training=training)
        changed = dataclasses.replace(getattr(config, section), **changes)
        return init_from.load(dataclasses.replace(config, **{section: changed}))

    assert load(workdir).chosen.steps == [5]
    model = load(average, dropout=0.7, dtype="bfloat16")
    assert model.chosen.steps == [5, 7]
    expected = restore(workdir, "average", 2)
    assert_same_params(model, expected)
    for section, name, value in (
        ("model", "d_ff", 7),
        ("data", "is_tokenized", True),
        ("tokenizer", "vocab_size", 271),
        ("tokenizer", "model_type", "unigram"),
    ):
        message = rf"init_from: {section}\.{name} is .* in .*run and {value!r} in the run to begin"
        with pytest.raises(UserError, match=message):
            load(workdir, section, **{name: value})
    with pytest.raises(UserError, match=r"^training\.init_from: .*none is not a work directory"):
        load(tmp_path / "none")

    # Its copy.
    begun = tmp_path / "begun"
    assert not init_from.is_kept(begun)
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), expected.params
    )
    with pytest.raises(UserError, match="begun/initial/checkpoints is gone"):
        init_from.restore(begun, like, {})
    init_from.keep(begun, model)
    assert init_from.is_kept(begun)
    params, extra = init_from.restore(begun, like, {})
    assert_same_params(dataclasses.replace(model, params=params), expected)
    assert extra == {}
    origin = provenance.origin(begun)
    assert origin.pop("params_sha256") == digest(expected.params)
    # Of a model without a history of train.py no more is known.
    assert origin == {"checkpoint": "average", "checkpoint_steps": [5, 7], "stopped_early": False}
    (begun / "initial/checkpoints/7/record/record.json").unlink()
    with pytest.raises(UserError, match=r"begun/initial/.* is damaged \(.*record.* put back"):
        init_from.restore(begun, like, {})


def test_vocabularies_keep_their_places():
    def shared(*languages, joint):
        names = dict(zip(("source_language", "target_language"), languages, strict=True))
        model = dataclasses.replace(CONFIG.model, share_embeddings="none")
        return init_from._what_is_shared(
            dataclasses.replace(
                CONFIG,
                model=model,
                data=dataclasses.replace(CONFIG.data, **names),
                tokenizer=dataclasses.replace(CONFIG.tokenizer, joint=joint),
            )
        )

    assert shared("en", "de", joint=True) == shared("de", "en", joint=True)
    assert shared("en", "de", joint=False) != shared("de", "en", joint=False)


def test_what_it_began_with_is_kept_in_mind(workdir, tmp_path):
    """And an ensemble is of the same choice."""
    model = restore(workdir, "last", None)
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    init_from.keep(copy, model)
    export(dataclasses.replace(model, workdir=copy), tmp_path / "small")
    assert provenance.origin(tmp_path / "small") == provenance.origin(copy) is not None
    assert not (tmp_path / "small/initial/checkpoints").exists()
    small = restore(tmp_path / "small", None, None)
    assert as_one([model, small]).chosen.steps == [7]
    with pytest.raises(UserError, match=r"checkpoint \(--checkpoint\) of .*small is 'last' and of"):
        as_one([restore(workdir, "best", None), small])


def test_damage(average, tmp_path):
    shutil.copytree(average, tmp_path / "small")
    path = tmp_path / "small" / "exported.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"last_step": 9}))
    with pytest.raises(UserError, match=r"exported.json is damaged; export the model again"):
        restore(tmp_path / "small", None, None)
    for name, value, message in (
        ("steps", [], "is damaged; export the model again"),
        ("steps", 7, "is damaged; export the model again"),
        ("steps", ["7"], "is damaged; export the model again"),
        ("checkpoint", ["best"], "is damaged; export the model again"),
        ("checkpoint", "worst", "has the checkpoint 'worst'; export the model again"),
        ("last_step", None, "is damaged; export the model again"),
        ("stopped_early", 0, "is damaged; export the model again"),
    ):
        del (changed := content | {name: value})["sha256"]
        path.write_text(json.dumps(signed(changed)))
        with pytest.raises(UserError, match=rf"exported\.json {message}"):
            restore(tmp_path / "small", None, None)
    path.write_text(json.dumps(content))
    (tmp_path / "small" / "checkpoints" / "7" / "record" / "record.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints/7 is damaged"):
        restore(tmp_path / "small", None, None)


def test_where_it_cannot_be(workdir, tmp_path):
    model = restore(workdir, "last", None)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("file", "link", "."):
        with pytest.raises(UserError, match=r"is there already; name a new folder"):
            export(model, tmp_path / name)
    with pytest.raises(UserError, match=r"file/small cannot be made; name a folder in another"):
        export(model, tmp_path / "file" / "small")


@pytest.mark.parametrize("method", ["save", "wait_until_finished"])
def test_a_full_disk(workdir, tmp_path, monkeypatch, method):
    model = restore(workdir, "last", None)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ocp.AsyncCheckpointer, method, full)
    with pytest.raises(UserError, match=r"cannot write .*small: No space left on device; make"):
        export(model, tmp_path / "small")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_not_taken_over(workdir, tmp_path):
    left = tmp_path / f".small.{os.getpid()}.export" / "checkpoints" / "3"
    left.mkdir(parents=True)
    export(restore(workdir, "last", None), tmp_path / "small")
    assert [path.name for path in (tmp_path / "small" / "checkpoints").iterdir()] == ["7"]
