"""classify.py and exports of a run of BERT's; and mistakes of its users."""

import json
from types import SimpleNamespace

import pytest
from scripts import ROOT, assert_refused, assert_same_params, run, succeeded
from small_bert import TINY, write_vocabulary

from transformer.inference.classifier import Classifier
from transformer.runs.restore import restore
from transformer.system.errors import UserError

FIELDS = {
    "data.train_file": "train.tsv",
    "data.validation_file": "dev.tsv",
    "data.max_length": 13,
    "tokenizer.source_model": "vocab.txt",
    "model.num_layers": 1,
    "model.d_model": 14,
    "model.d_ff": 11,
    "training.tokens_per_update": 13 * 5,
    "training.steps": 4,
    "training.checkpoint_every": 2,
    "optimizer.warmup_steps": 1,
}
PRE_TRAINING = {
    "data.train_file": "train.txt",
    "data.validation_file": "train.txt",
    "data.max_length": 13,
    "data.duplicates": 1,
    "tokenizer.source_model": "vocab.txt",
    "model.num_layers": 1,
    "model.d_model": 14,
    "model.d_ff": 11,
    "training.tokens_per_update": 13 * 5,
    "training.steps": 2,
}


def flags(config="classification", fields=FIELDS, **changes) -> list[str]:
    """Changes of fields: data_max_length=7."""
    fields = fields | {name.replace("_", ".", 1): value for name, value in changes.items()}
    given = [f"--config.{name}={value}" for name, value in fields.items() if value is not None]
    return [f"--config={ROOT / 'configs' / config}.py", *given]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    write_vocabulary(folder)
    (folder / "train.tsv").write_text("one two\t0\nthree\t1\nfour one\t1\n" * 7)
    (folder / "dev.tsv").write_text("one two\t0\nthree\t1\n")
    (folder / "unlabelled.tsv").write_text("one\t1\ntwo\t\n")
    (folder / "other.tsv").write_text("one\t1\ntwo\tmaybe\n")
    (folder / "train.txt").write_text("one two\nthree\n\nfour one\nthree\n")
    (folder / "empty.txt").write_text("\n")
    (folder / "hub").mkdir()
    write_vocabulary(folder / "hub")
    (folder / "hub/config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "hub/pytorch_model.bin").write_bytes(b"x")
    (folder / "input.txt").write_text("one two three\n\nfourteen\n")
    succeeded(run("train.py", *flags(), "--workdir=run", cwd=folder))
    return folder


def test_a_line_of_json_for_each_line(folder):
    """And an exported model is the same."""
    text = (folder / "input.txt").read_bytes()
    found = succeeded(run("classify", "--workdir=run", cwd=folder, stdin=text)).out
    lines = [json.loads(line) for line in found.decode().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert sorted(line["probabilities"]) == ["0", "1"]
        assert line["label"] == max(line["probabilities"], key=line["probabilities"].get)
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    succeeded(run("evaluate.py", "--workdir=run", "--export=small", cwd=folder))
    assert_same_params(restore(folder / "small"), restore(folder / "run"))


def test_what_comes_before_a_bad_line_is_kept(folder):
    arguments = ["--workdir=run", "--input=bad.txt", "--output=begun.jsonl"]
    (folder / "bad.txt").write_text("one two three\n\na\tb\n")
    assert_refused(run("classify", *arguments, cwd=folder), "bad.txt, line 3 has 2 columns")
    begun = (folder / "begun.jsonl").read_text()
    assert begun.count("\n") == 2
    # Mended, the same command goes on from there.
    (folder / "bad.txt").write_text("one two three\n\nfour\n")
    succeeded(run("classify", *arguments, cwd=folder))
    whole = (folder / "begun.jsonl").read_text()
    assert whole.startswith(begun)
    assert whole.count("\n") == 3


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (flags(data_validation_file="other.tsv"), "example 2: unknown label 'maybe'; the training"),
        (flags(data_train_file="unlabelled.tsv"), "unlabelled.tsv, line 2 has no label in '2'"),
        (flags(data_max_length=600), "data.max_length is 600, but model.max_positions is 512"),
        (flags(training_best_metric="bleu"), "which the task classification does not measure"),
        (flags(tokenizer_source_model="input.txt"), "input.txt has no [PAD]"),
        (
            flags(tokenizer_source_model=None, training_init_from="hub"),
            "hub has no model.safetensors; pytorch_model.bin can run code",
        ),
        (
            flags(tokenizer_source_model=None, training_init_from="run", model_d_model=16),
            "model.d_model is 14 in run and 16 in the run to begin",
        ),
        (flags("bert_tiny", PRE_TRAINING, data_train_file="empty.txt"), "hold no documents; give"),
        (flags("bert_tiny", PRE_TRAINING, data_train_file=None), "give data.train_file"),
        (flags("bert_tiny", PRE_TRAINING, model_head="x"), "model.head is 'x'; it must be one of"),
    ],
)
def test_mistakes_before_training(arguments, part, folder):
    before = sorted(path.name for path in folder.iterdir())
    assert_refused(run("train.py", *arguments, "--workdir=new", cwd=folder), part)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("script", "arguments", "part"),
    [
        (
            "classify",
            ["--workdir=run", "--beam_size=2"],
            "--beam_size is given, and the task classification has no decoding.beam_size; leave",
        ),
        ("classify", ["--workdir=run", "--ensemble=run"], "--ensemble is for translation"),
        ("translate.py", ["--workdir=run", "--input=input.txt"], "which does not translate; give"),
        (
            "evaluate.py",
            ["--workdir=run", "--split=test"],
            "no files for the test split; give data",
        ),
    ],
)
def test_mistakes_with_a_trained_model(script, arguments, part, folder):
    assert_refused(run(script, *arguments, cwd=folder), part)


def test_a_run_of_pre_training_classifies_nothing():
    other = SimpleNamespace(task=None, workdir="pre", config=TINY)
    with pytest.raises(UserError, match=r"^pre is a run of the task masked_lm; give the --workdir"):
        Classifier(other, None, "in")
