"""From JSON lines to ROUGE, by the commands."""

import json

import jax
import pytest
from scripts import ROOT, assert_refused, metrics, run, succeeded, write_toy
from small_configs import config_of

from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh

FIELDS = {
    "data.train_file": "train.jsonl",
    "data.validation_file": "dev.jsonl",
    "data.test_file": "dev.jsonl",
    "data.test_summary_fields": "summary, other",
    "data.data_dir": "data",
    "data.max_source_length": 8,
    "data.max_target_length": 40,
    "tokenizer.vocab_size": 300,
    "model.d_model": 8,
    "model.d_ff": 11,
    "model.layers": "LM",
    "optimizer.warmup_steps": 5,
    "training.steps": 2,
    "training.tokens_per_update": 200,
    "training.checkpoint_every": 2,
    "training.full_validation_every": 2,
    "training.best_metric": "rouge1",
    "decoding.beam_size": 2,
    "decoding.max_length": 6,
}


def flags(**changes):
    fields = FIELDS | {name.replace("_", ".", 1): value for name, value in changes.items()}
    config = f"--config={ROOT / 'configs/dialogsum_dmca.py'}"
    return [config, *(f"--config.{name}={value}" for name, value in fields.items())]


@pytest.fixture
def folder(tmp_path):
    write_toy(tmp_path, train=60, test=4)
    for name, split in (("train", "train"), ("dev", "test")):
        sides = [(tmp_path / f"{split}.{x}").read_text().splitlines() for x in ("en", "de")]
        lines = [
            json.dumps({"dialogue": f"{a}\n<s> one two three", "summary": b, "other": a})
            for a, b in zip(*sides, strict=True)
        ]
        lines.append(json.dumps({"dialogue": "one", "summary": "", "other": ""}))
        lines.append(json.dumps({"dialogue": "one", "summary": "eins", "other": "a"}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.slow
def test_it_trains_and_is_scored(folder):
    out = succeeded(run("train.py", *flags(), "--workdir=run", cwd=folder)).out.decode()
    assert "61 of 62 pairs; dropped: 1 empty, 0 source too long" in out
    assert "sources cut: 60" in out
    assert "of 6 documents have more than 8 tokens (cut)" in out
    final = metrics(folder / "run")[-1]
    assert {"eval/validation/rougeLsum", "eval/validation/repeated_trigrams"} <= final.keys()
    succeeded(run("evaluate.py", "--workdir=run", "--split=validation,test", cwd=folder))
    scores = json.loads((folder / "run/eval/validation/scores.json").read_text())
    assert scores["rouge1"]["score"] == pytest.approx(final["eval/validation/rouge1"])
    scores = json.loads((folder / "run/eval/test/scores.json").read_text())
    assert scores["lead3_rouge1"]["score"] > 0
    assert scores["lead3_lines_rouge1"]["score"] > 0
    assert scores["rouge2_best_unstemmed"]["signature"].startswith("rouge-score")
    assert scores["long_documents"]["score"] == 4
    assert scores["empty_references"]["score"] == 2
    assert (folder / "run/eval/test/references.2.txt").read_text().count("\n") == 6
    # A file that came later, whose third reference is wrong: found before the search.
    lines = (folder / "dev.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"other"', '"another"')
    (folder / "later.jsonl").write_text("\n".join(lines[:3]) + "\n")
    later = run("evaluate.py", "--workdir=run", "--test_file=later.jsonl", cwd=folder)
    assert_refused(later, "later.jsonl, line 3 has no field 'other'")
    summaries = run("translate.py", "--workdir=run", cwd=folder, stdin=b"one two three four five\n")
    assert b"\n" in succeeded(summaries).out
    assert "it is cut there" in summaries.err


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
def test_what_is_refused(folder, monkeypatch):
    long = "60 of 62 documents of train have more than data.max_source_length = 8"
    for changes, message in (
        ({"data_long_documents": "refuse"}, long),
        ({"tokenizer_joint": False}, "set tokenizer.joint to True"),
    ):
        config, _ = config_of(["train.py", *flags(**changes)], monkeypatch)
        monkeypatch.chdir(folder)
        with pytest.raises(UserError, match=message):
            config.kind.prepare(config, data_mesh(jax.devices()[:1]), folder / "run", None)
