"""Parsing as a user does it, and what is counted."""

import json

import pytest
from scripts import ROOT, assert_refused, run, succeeded, toy_flags, write_toy

from configs import parsing_small
from transformer.data.treebank import TreebankConfig
from transformer.data.trees import read_trees
from transformer.metrics import parseval
from transformer.runs import run_config
from transformer.tasks import parsing
from transformer.tasks.mending import is_well_formed
from transformer.tasks.pair_training import Texts

NOUNS, VERBS = ["dogs", "cats", "cells", "genes"], ["see", "bind", "hear"]
FIELDS = {
    "data.raw_dir": "bank",
    "data.data_dir": "data",
    "data.max_source_length": 31,
    "data.max_target_length": 31,
    "tokenizer.vocab_size": 300,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 14,
    "model.d_ff": 11,
    "model.num_heads": 2,
    "data.tags": "XX",
    "optimizer.warmup_steps": 7,
    "training.tokens_per_update": 155,
    "training.steps": 2,
    "training.log_every": 1,
    "training.checkpoint_every": 2,
    "training.full_validation_every": 2,
    "decoding.beam_size": 2,
    "decoding.max_extra_length": 20,
}
FLAGS = [
    f"--config={ROOT / 'configs' / 'parsing_small.py'}",
    *(f"--config.{name}={value}" for name, value in FIELDS.items()),
]


def tree(i):
    noun, verb, other = NOUNS[i % 4], VERBS[i % 3], NOUNS[i // 5 % 4]
    of = (
        f"(NP (NP (NNS {other})) (PP (IN of) (NP (NNS {noun}))))"
        if i % 2
        else f"(NP (NNS {other}))"
    )
    return f"(S1 (S (NP-SBJ (NNS {noun})) (VP (VBP {verb}) {of}) (. .)))\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parsing")
    (directory / "bank").mkdir()
    for name, numbers in (("train", range(97)), ("dev", range(97, 104)), ("test", range(7))):
        (directory / f"bank/{name}.trees").write_text("".join(map(tree, numbers)))
    return directory


@pytest.fixture(scope="module")
def whole(directory):
    succeeded(run("train.py", *FLAGS, "--workdir=whole", cwd=directory))
    return directory / "whole"


@pytest.mark.slow
def test_all_sentences_count(directory, whole):
    """Whatever a model without a clue writes; F1 of the files is that of the scores."""
    last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert {f"eval/validation/{name}" for name in parsing.TASK.metrics} <= last.keys()
    succeeded(run("evaluate.py", "--workdir=whole", "--split=test", cwd=directory))
    folder = whole / "eval/latest"
    scores = json.loads((folder / "scores.json").read_text())
    gold, trees, sequences, sources = (
        (folder / f"{name}.txt").read_text().splitlines()
        for name in ("references", "hypotheses", "sequences", "sources")
    )
    assert len(gold) == len(trees) == scores["examples"] == 7
    pairs = zip(read_trees(gold, "gold"), read_trees(trees, "trees"), strict=True)
    counts = [parseval.count([a], [b]) for a, b in pairs]
    assert all(x.status == parseval.OK for x in counts)
    assert parseval.total(counts)["f1"] == pytest.approx(scores["f1"]["score"])
    lengths = [len(line.split()) for line in sources]
    formed = [is_well_formed(x.split(), n) for x, n in zip(sequences, lengths, strict=True)]
    assert scores["malformed"]["score"] == pytest.approx(100 * (1 - sum(formed) / 7))
    data = run_config.load(whole).data
    data = type(data)(**{**vars(data), "raw_dir": str(directory / "bank")})
    again = parsing.TASK.rescore(data, "test", trees)
    assert again["f1"]["score"] == pytest.approx(scores["f1"]["score"])


def test_perfect_and_malformed(directory, monkeypatch):
    """Of two sequences one is whole, and one is mended."""
    sequence = "(S (NP XX )NP (VP XX (NP (NP XX )NP (PP XX (NP XX )NP )PP )NP )VP XX )S"
    (directory / "bank/two.trees").write_text(2 * tree(1))
    fields = parsing_small.get_config().data.to_dict()
    fields |= {"raw_dir": str(directory / "bank"), "test_trees": "two.trees", "tags": "XX"}
    task = object.__new__(parsing.Parsing)  # without a model: the sequences are given
    task.data = TreebankConfig(**fields)
    task.translate = lambda params, extra, sources, progress: [sequence, sequence[:-3]]
    monkeypatch.setattr(parsing, "source_scores", lambda *_: {})
    found = task.evaluate(None, None, "test", None)
    scores = {name: score["score"] for name, score in found.scores.items()}
    assert scores == pytest.approx(
        {
            **dict.fromkeys(("f1", "precision", "recall"), 100.0),
            "complete": 100.0,
            "malformed": 50.0,
        }
    )
    assert task.validation_scores(None, Texts("test", [], [], found.texts["sequences"])) == {
        name: scores[name] for name in ("f1", "complete", "malformed")
    }
    again = parsing.TASK.rescore(task.data, "test", found.texts["hypotheses"])
    assert again == {name: found.scores[name] for name in again}


@pytest.mark.slow
def test_with_brackets_all_outputs_are_trees(directory, whole):
    """A result is verified with them, though the config says nothing of them."""
    own = ["--workdir=whole", "--split=validation", "--brackets", "--checkpoint=best"]
    succeeded(run("evaluate.py", *own, "--record=results/a.json", cwd=directory))
    result = json.loads((directory / "results/a.json").read_text())
    assert result["splits"]["validation"]["scores"]["malformed"]["score"] == 0
    verify = ["--workdir=whole", "--verify=results/a.json"]
    assert b"scores agree" in succeeded(run("evaluate.py", *verify, cwd=directory)).out
    script = "parse"
    text = b"Dogs (of genes) see cells.\n\ncats hear\n"
    said = succeeded(run(script, "--workdir=whole", cwd=directory, stdin=text)).out.decode()
    first, blank, last = said.split("\n")[:3]
    assert blank == ""
    (found,) = read_trees([first], "first")
    words = ["Dogs", "-LRB-", "of", "genes", "-RRB-", "see", "cells", "."]
    assert [leaf.word for leaf in found.leaves()] == words
    assert [leaf.label for leaf in found.leaves()][1::3] == ["-LRB-", "-RRB-", "."]
    assert len(list(read_trees([last], "last"))) == 1
    flags = ["--workdir=whole", "--format=drawing", "--is_tokenized", "--output=drawn.txt"]
    succeeded(run(script, *flags, cwd=directory, stdin=b"dogs see .\n"))
    drawn = (directory / "drawn.txt").read_text()
    assert [line.split()[-1] for line in drawn.splitlines() if "XX" in line] == ["dogs", "see"]


def test_evalb_and_what_is_refused(directory):
    scored = ["--gold=bank/test.trees", "--test=bank/test.trees"]
    said = succeeded(run("evalb", *scored, cwd=directory)).out.decode()
    assert ["F1", "100.00"] in [line.split() for line in said.splitlines()]
    (directory / "bad").mkdir()
    (directory / "bad/train.trees").write_text(tree(1) + "(S (NN Ro(SSA)))\n")
    write_toy(directory, train=97, validation=5)
    of_trees = "--config.decoding.brackets=True"
    for script, flags, message in (
        ("train.py", [*FLAGS, "--config.data.raw_dir=bad"], "train.trees, line 2: the word 'Ro'"),
        ("train.py", [*toy_flags(), of_trees], "decoding.brackets is for trees"),
        ("evalb", [scored[0], "--test=bad/train.trees"], "7 lines and"),
    ):
        given = [*flags, "--workdir=new"] if script == "train.py" else flags
        assert_refused(run(script, *given, cwd=directory), message)
        assert not (directory / "new").exists()
