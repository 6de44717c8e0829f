"""A language model, from text files to samples."""

import json
import math
import random

import jax
import numpy as np
import pytest
from scripts import ROOT, assert_refused, metrics, run, succeeded
from small_configs import config_of

from transformer.data.plain_text import windows
from transformer.data.records import Records
from transformer.data.vocabulary import EOS
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh

TEXT = "one two three.\nfour five.\n\nsix seven one two.\n" * 20
FIELDS = {
    **{f"data.{split}_file": "text.txt" for split in ("train", "validation", "test")},
    "data.max_length": 11,
    "tokenizer.vocab_size": 290,
    "model.d_model": 8,
    "model.d_ff": 11,
    "model.layers": "FL",
    "training.steps": 2,
    "training.log_every": 2,
    "training.tokens_per_update": 100,
    "training.checkpoint_every": 2,
    "decoding.max_extra_length": 25,
}


class Letters:
    """A letter is a token."""

    vocab_size = 300

    def encode_batch(self, texts, num_threads):
        return [list(map(ord, text)) for text in texts]


def test_windows(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abc\nd\n\né\n")
    found = windows(Records([str(path)], {"text_field": "text"}), Letters(), 4)
    letters = ["abc ", ["d", EOS], ["é", EOS]]
    for i, expected in enumerate(letters):
        ids = [x if x == EOS else ord(x) for x in expected]
        np.testing.assert_array_equal(found.pairs.target(i), ids)
        np.testing.assert_array_equal(found.pairs.source(i), [EOS])
    assert (len(found.pairs), found.num_documents, found.num_bytes) == (3, 2, 7)


FLAGS = [
    f"--config={ROOT / 'configs/lm.py'}",
    *(f"--config.{name}={value}" for name, value in FIELDS.items()),
]


@pytest.mark.slow
def test_it_trains_and_samples(tmp_path):
    long_word = "".join(random.Random(0).choices("fhirsuvwx", k=90))
    (tmp_path / "text.txt").write_text(f"{TEXT}\n{long_word}\n")
    succeeded(run("train.py", *FLAGS, "--workdir=run", cwd=tmp_path))
    out = succeeded(run("evaluate.py", "--workdir=run", cwd=tmp_path)).out.decode()
    assert "test: 1 of 22 documents are not continued: their first 6 words fill the 25 tok" in out
    prompts, beginnings, written = (
        (tmp_path / f"run/eval/test/{name}.txt").read_text().splitlines()
        for name in ("sources", "references", "hypotheses")
    )
    for prompt, *texts in zip(prompts, beginnings, written, strict=True):
        assert all(text.startswith(prompt) for text in texts)
    scores = json.loads((tmp_path / "run/eval/test/scores.json").read_text())
    assert scores["perplexity"]["score"] == pytest.approx(math.exp(scores["nll"]["score"]))
    final = metrics(tmp_path / "run")[-1]
    for name in ("nll", "byte_perplexity", "bits_per_byte"):
        assert scores[name]["score"] == pytest.approx(final[f"eval/validation/{name}"], rel=1e-4)

    def generate(*flags):
        return run("complete", "--workdir=run", *flags, cwd=tmp_path)

    lines = (
        succeeded(generate("--prompt=one two", "--samples=3"))
        .out.decode()
        .removesuffix("\n")
        .split("\n")
    )
    assert len(lines) == 3
    assert all(line.startswith("one two") for line in lines)
    assert len(set(lines)) == 3
    (tmp_path / "prompts").write_text("one\none\n")
    flags = "--input=prompts", "--temperature=2"
    same, others = (
        succeeded(generate(*flags, f"--seed_by={by}")).out.decode().splitlines()
        for by in ("text", "line")
    )
    assert same[0] == same[1]
    assert others[0] != others[1]
    assert succeeded(generate("--prompt=", "--temperature=0", "--top_k=0")).out
    assert_refused(generate(), "give --prompt or --input")
    assert_refused(generate(f"--prompt={'one ' * 30}"), "the prefix of sentence 1 of 1 has")
    translated = run("translate.py", "--workdir=run", "--prefixes", cwd=tmp_path, stdin=b"a\tb\n")
    assert_refused(translated, "a prompt is a prefix already")


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
def test_bad_input(tmp_path, monkeypatch):
    config, _ = config_of(["train.py", *FLAGS], monkeypatch)
    monkeypatch.chdir(tmp_path)
    for message in ("data.train_file: there is no file text.txt", "text.txt hold no text"):
        with pytest.raises(UserError, match=message):
            config.kind.prepare(config, data_mesh(jax.devices()[:1]), tmp_path / "run", None)
        (tmp_path / "text.txt").write_text("\n\n")
