"""The ledger: RESULTS.md is what its files say, and a result proves itself or is refused."""

import copy
import json
from pathlib import Path

import pytest
from test_bad_input import run

from configs import demo
from transformer import ledger
from transformer.errors import UserError
from transformer.evaluation import Translations
from transformer.experiment import Experiment
from transformer.sources import PairSource

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "results").glob("*.json"))
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


class Pairs(PairSource):
    fingerprint = "f"

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def chunks(self, size):
        for i in range(0, len(self.pairs), size):
            yield self.pairs[i : i + size]

    def describe(self):
        return f"{len(self)} pairs of a test"


def result(seed=0, bleu=40.0, **changes):
    config = demo.get_config()
    config.training.seed = seed
    start = {"step": 0, "commit": "abc1234", "device": "1 x cpu", "cpu": "2 cores, X"}
    start |= {"python": "3.11.7"} | dict.fromkeys(ledger.provenance.PACKAGES, "1.0")

    def split(score):
        scores = {"bleu": {"score": score, "signature": SIGNATURE}}
        scores["odd"] = {"score": 1.0, "definition": "an odd one"}
        references = ledger.lines_sha256(["r"])
        hypotheses = ledger.lines_sha256(["h"])
        hashes = {"references_sha256": references, "hypotheses_sha256": hypotheses}
        return {"scores": scores, "sentences": 1, **hashes}

    return {
        "config_file": "configs/demo.py",
        "overrides": {},
        "seed": seed,
        "config": ledger.comparable(Experiment.from_dict(config.to_dict())),
        "data_sha256": {"train": 64 * "d", "validation": 64 * "e"},
        "checkpoint": "average",
        "checkpoint_steps": [1, 2, 3],
        "beam_size": 4,
        "length_penalty": {"name": "gnmt", "alpha": 0.6},
        "tokenizer_sha256": [64 * "f"],
        "steps": 3000,
        "parameters": 2_562_048,
        "target_tokens": 1_230_000,
        "training_seconds": 4000,
        "starts": [start],
        "candidates": {"best": 30.0, "average": 31.0},
        "splits": {"validation": split(31.0), "test": split(bleu)},
        "curve": {"nll": [[1, 2.5], [2, 1.5]], "bleu": [[2, 31.0]]},
        **changes,
    }


def saved(folder, **results):
    for name, content in results.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def rows(text):
    return [[c.strip() for c in line.split("|")[1:-1]] for line in text.split("\n") if "|" in line]


def test_results_md_is_made_from_the_files():
    """If it fails: python -m transformer.ledger."""
    assert (ROOT / "RESULTS.md").read_text() == ledger.results_md(ROOT / "results")


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_the_files_are_whole(path):
    content = ledger.read(path)
    for split in content["splits"]:
        ledger.saved_hypotheses(path, content, split)
    assert content["overrides"] == ledger.overrides(content["config"], content["config_file"])
    assert "/work" not in path.read_text()
    assert not any(start["commit"].endswith("-dirty") for start in content["starts"])
    picture = ledger.picture_name(content["config"]["data.dataset"])
    assert (ROOT / "results" / picture).exists()


def test_a_row_for_each_run_and_a_mean_of_its_seeds(tmp_path):
    other = result(seed=1, bleu=42.0, training_seconds=59)
    changed = result(overrides={"model.dtype": "bfloat16"}, bleu=10.0, parameters=1_000_000)
    folder = saved(tmp_path / "results", first=result(), second=other, third=changed)
    text = ledger.results_md(folder)
    table = rows(text)
    assert table[0] == ["Config", "Parameters", "Seeds", "BLEU, validation", "BLEU, test"]
    assert table[2] == ["`configs/demo.py`", "2.6 M", "2", "31.00 ± 0.00", "41.00 ± 1.41"]
    title = "`configs/demo.py`, `model.dtype=bfloat16`"
    assert table[3] == [title, "1.0 M", "1", "31.00", "10.00"]
    assert table[6] == [
        *("[first](results/first.json)", "abc1234", "2 cores, X", "1 h 7 min", "3,000", "1.2 M"),
        *("average of 3 (validation: best 30.00, average 31.00)", "31.00", "40.00"),
    ]
    assert [row[0] for row in table[7:9]] == [
        f"[{n}](results/{n}.json)" for n in ("second", "third")
    ]
    assert table[7][3] == "1 min"
    commands = [line for line in text.split("\n") if line.startswith("python")]
    assert commands[-2:] == [
        "python train.py --config=configs/demo.py --config.model.dtype=bfloat16 "
        "--config.training.seed=0 --workdir=runs/third",
        "python evaluate.py --workdir=runs/third --split=test --checkpoint=average "
        "--average_last=3 --beam_size=4 --length_penalty=0.6",
    ]
    assert f"- test, 1 sentences: bleu 10.00 `{SIGNATURE}`; odd 1.00." in text
    (folder / "earlier.md").write_text("## Earlier\n")
    assert ledger.results_md(folder) == text + "\n## Earlier\n"


def test_a_split_that_only_some_runs_have(tmp_path):
    more = result()
    more["splits"]["test_2017"] = copy.deepcopy(more["splits"]["test"])
    table = rows(ledger.results_md(saved(tmp_path / "results", a=result(), b=more)))
    assert table[0][-1] == "BLEU, test_2017"
    assert [row[-1] for row in table[2:3] + table[5:7]] == ["40.00", "-", "40.00"]


def test_overrides():
    fields = ledger.comparable(Experiment.from_dict(demo.get_config().to_dict()))
    assert ledger.overrides(fields, "configs/demo.py") == {}
    assert not any(name.startswith(("mesh.", "data.train_source", "data.raw")) for name in fields)
    changed = fields | {"model.d_ff": 7, "training.seed": 3}
    assert ledger.overrides(changed, "configs/demo.py") == {"model.d_ff": 7}


def test_hashes_are_of_the_text_alone():
    pairs = [("a", "b"), ("c", "\ud800")]
    whole = ledger.text_sha256(Pairs(pairs))
    assert whole == ledger.text_sha256(Pairs(list(pairs)))
    for other in (pairs[:1], pairs[::-1], [("a", "b"), ("c", "e")], [("ab", ""), pairs[1]]):
        assert ledger.text_sha256(Pairs(other)) != whole
    assert ledger.lines_sha256(["a", "b"]) != ledger.lines_sha256(["a b"])


def test_disagreements():
    found = {"validation": {"bleu": {"score": 31.1}, "odd": {"score": 1.0}}}
    found["test"] = {"bleu": {"score": 40.3}, "odd": {"score": float("nan")}}
    assert ledger.disagreements(result(), found, 0.2) == [
        "test bleu: recorded 40.00, now 40.30",
        "test odd: recorded 1.00, now nan",
    ]
    assert len(ledger.disagreements(result(), found, 0.05)) == 3


def test_what_is_written_can_be_read(tmp_path):
    path = tmp_path / "results" / "x.json"
    translations = Translations(["s"], ["r"], ["h"])
    ledger.write(path, result(), {"test": (translations, {}), "a/b": (translations, {})})
    assert ledger.read(path) == result()
    assert ledger.saved_hypotheses(path, result(), "test") == ["h"]
    assert (tmp_path / "results" / "x" / "a_b.txt").read_text() == "h\n"
    assert ledger.references(path, result(), "test", Pairs([("s", "r")])) == ["r"]


def test_changed_texts_are_refused(tmp_path):
    path = saved(tmp_path, x=result()) / "x.json"
    with pytest.raises(UserError, match=r"cannot read .*x/test\.txt"):
        ledger.saved_hypotheses(path, result(), "test")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "test.txt").write_text("other\n")
    with pytest.raises(UserError, match=r"x/test\.txt has been changed"):
        ledger.saved_hypotheses(path, result(), "test")
    with pytest.raises(UserError, match=r"references of test are not those of .*x\.json: 1 pairs"):
        ledger.references(path, result(), "test", Pairs([("s", "q")]))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"splits": 3}'])
def test_no_result(tmp_path, content):
    path = tmp_path / "x.json"
    with pytest.raises(UserError, match=r"cannot read the result .*x\.json: No such file"):
        ledger.read(path)
    path.write_text(content)
    with pytest.raises(UserError, match=r"x\.json is no result of this ledger"):
        ledger.read(path)


def test_curves(tmp_path):
    ledger.draw("multi30k/en-de", {"a": result()}, tmp_path / ledger.picture_name("multi30k/en-de"))
    assert (tmp_path / "multi30k_en-de.png").read_bytes().startswith(b"\x89PNG")
    metrics = [{"step": 1, "train/nll": 3.0}, {"step": 2, "eval/validation/nll": 1.23456}]
    metrics.append({"step": 3, "eval/validation/nll": None, "eval/validation/bleu": 0.0})
    assert ledger.curve(metrics) == {"nll": [(2, 1.2346)], "bleu": [(3, 0.0)]}


def test_what_the_commands_refuse(tmp_path):
    path = saved(tmp_path, text=result(), x=result()) / "text.json"
    content = result()
    content["config"]["data.dataset"] = None
    path.write_text(json.dumps(content))
    for options, message in (
        (["--verify=x.json", "--record=y.json"], "--record and --verify are given"),
        (["--explain=larger"], "there is no recipe 'larger'; give one of: base, big"),
        (["--verify=text.json"], "this result is of text files; give the --workdir"),
        (["--record=y.json"], "--workdir is missing"),
    ):
        refused = run("evaluate.py", *options, cwd=tmp_path)
        assert refused.code == 2
        assert message in refused.err
        assert refused.err.count("\n") == 1
    assert not (tmp_path / "y.json").exists()
