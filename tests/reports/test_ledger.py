"""The ledger: RESULTS.md and its pages say what its files say; a wrong result is refused."""

import copy
import dataclasses
import gzip
import hashlib
import json
import math
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
from damage import assert_used_or_refused, damaged
from scripts import assert_refused, run
from small_configs import config_of
from small_models import trained_model

from benchmarks import results_page
from configs import demo
from transformer.reports import ledger
from transformer.reports.results import checkpoint_flags, search_flags
from transformer.runs import history, run_config, sweep
from transformer.runs.integrity import signed
from transformer.runs.provenance import ORIGIN, PACKAGES, add_start
from transformer.runs.restore import Chosen, TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.tasks import seq2seq
from transformer.tasks.task import Outputs, find_task

ROOT = Path(__file__).parents[2]
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def hash_of(*pairs: tuple[str, str]) -> str:
    return hashlib.sha256("".join(f"{a}\n{b}\n" for a, b in pairs).encode()).hexdigest()


def result(seed=0, bleu=40.0, **changes):
    config = demo.get_config()
    config.training.seed = seed
    start = {"step": 0, "commit": "abc1234", "device": "1 x cpu", "cpu": "2 cores, X"}
    start |= {"python": "3.11.7"} | dict.fromkeys(PACKAGES, "1.0")

    def split(name, score):
        scores = {"bleu": {"score": score, "signature": SIGNATURE}}
        scores["odd"] = {"score": 1.0, "definition": "an odd one"}
        hashes = {"text_sha256": hash_of(("s", "r"))}
        hashes |= {"hypotheses_sha256": hashlib.sha256(b"h\n").hexdigest()}
        return {"name": name, "scores": scores, "examples": 1, **hashes}

    return {
        "config_file": "configs/demo.py",
        "overrides": {},
        "seed": seed,
        "config": history.recorded_fields(Config.from_dict(config.to_dict())),
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
        "splits": {"validation": split("dev", 31.0), "test": split("test_2016", bleu)},
        "curve": {"nll": [[1, 2.5], [2, 1.5]], "bleu": [[2, 31.0]]},
        **changes,
    }


def saved(folder, **results):
    for name, content in results.items():
        folder.mkdir(exist_ok=True, parents=True)
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def rows(text):
    return [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.split("\n") if line[:1] == "|"
    ]


def ours_of(tmp_path, results):
    """Our scores in the rows of RESULTS.md."""
    pages = results_page.pages(saved(tmp_path / "results", **results))
    return {row[0]: row[4] for row in rows(pages["RESULTS.md"])[2:]}


def test_the_pages_are_made_from_the_files():
    """If it fails: python benchmarks/results_page.py."""
    pages = results_page.pages(ROOT / "results")
    assert {name: (ROOT / name).read_text() for name in pages} == pages
    found = {f"results/{path.name}" for path in (ROOT / "results").glob("*.md")}
    assert found == pages.keys() - {"RESULTS.md"} | {"results/earlier.md"}  # delete the others
    for title in results_page.by_data(ROOT / "results"):
        assert (ROOT / "results" / results_page.picture_name(title)).exists()
    assert pages["RESULTS.md"].count("\n") < 150
    names = {row[0] for row in rows(pages["RESULTS.md"])[2:]}
    assert not names & {name.removeprefix("results/")[:-3] for name in pages}  # without words


def test_the_files_are_whole(monkeypatch):
    """Saved outputs are those that were scored; those of sweeps are runs of the sweep file."""
    monkeypatch.chdir(ROOT)
    plans = {
        name: {run.name: run for run in sweep.runs_of(sweep.read_plan(file), file)}
        for name in results_page.sweeps(ROOT / "results")
        for file in [f"configs/sweeps/{name}.py"]
    }
    for path in sorted((ROOT / "results").rglob("*.json")):
        content, name = ledger.read(path), path.parent.name
        assert not re.search(r'"/|"~', path.read_text())  # a path of somebody's machine
        for one in ledger.all_runs(content):
            assert all(re.fullmatch("[0-9a-f]{7,}", start["commit"]) for start in one["starts"])
            assert (ROOT / one["config_file"]).exists()
        if name in plans:
            assert plans[name][path.stem].settings.items() <= content["config"].items()
        if name not in ("table3", "parsing"):  # whose outputs would take megabytes
            for split in content["splits"]:
                ledger.saved_outputs(path, content, split)


def test_wrong_words_of_rows_and_names_of_runs(tmp_path):
    folder = saved(tmp_path / "results", first=result())
    for text, message in {
        "[gone]": r"has gone; there is no such result or column",
        "[first]\npublshed = 'x'": r"has publshed; there is no such result or column",
        "[first": r"cannot be used: Expected ']'",
        "first = 3": r"first is 3; expected an object",
        "[first]\nmodel = 3": r"first.model is 3; expected a text",
    }.items():
        (folder / "rows.toml").write_text(text)
        with pytest.raises(UserError, match=rf"rows.toml .*{message}"):
            results_page.pages(folder)
    (folder / "rows.toml").unlink()
    saved(folder / "mine", ensemble=result())
    with pytest.raises(UserError, match=r"ensemble is no run of a sweep; .* end in -0, its seed"):
        results_page.pages(folder)


def test_an_ensemble_is_one_of_its_seeds_in_any_order(tmp_path):
    together = result(ensemble_with=[result(seed=1)], bleu=43.0)
    third = result(ensemble_with=[result(seed=2)], bleu=43.0)
    swapped = result(seed=2, ensemble_with=[result()], bleu=10.0)
    runs = dict(a=result(), b=result(seed=1), c=together, d=third, e=swapped)
    assert ours_of(tmp_path, runs) == {"a": "40.00 ± 0.00 (2 seeds)", "c": "43.00 ± 0.00 (2 seeds)"}
    del together["ensemble_with"][0]["seed"]
    with pytest.raises(UserError, match=r"c\.json is no result of this ledger"):
        results_page.pages(saved(tmp_path / "results", c=together))


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
def test_the_command_gives_the_config_again(monkeypatch):
    changes = {"data.is_tokenized": True, "optimizer.peak_learning_rate": 5e-3}
    changes |= {"data.train_split": "train[:10%]", "model.dtype": "bfloat16", "training.steps": 7}
    config = demo.get_config()
    config.training.seed = 3
    config.update_from_flattened_dict(changes)
    config = Config.from_dict(config.to_dict())
    run = result(seed=3, overrides=changes, config=history.recorded_fields(config))
    train, _ = results_page.commands("x", run)
    found, others = config_of(shlex.split(train.removeprefix("python ")), monkeypatch)
    assert found == config
    assert others == ["--workdir=runs/x"]


def test_what_several_runs_began_with_is_trained_once(tmp_path):
    """Of an ensemble."""
    origin = result(seed=4, checkpoint="average")
    runs = [result(seed=seed, init_from=origin) for seed in (0, 1)]
    others = runs[1] | {"init_from": origin | {"seed": 5}}
    together = runs[0] | {"ensemble_with": [runs[1], others]}
    assert [run["seed"] for run in ledger.all_runs(together)] == [4, 0, 1, 5, 1]
    commands = [line for line in results_page.commands("x", together) if "--split" not in line]
    words = [[w.split("=")[1] for w in line.split() if "runs/" in w] for line in commands]
    assert words == [
        ["runs/x.0"],
        ["runs/x.0", "runs/x.0.average"],
        ["runs/x.0.average", "runs/x.1"],
        ["runs/x.0.average", "runs/x.2"],
        ["runs/x.3"],
        ["runs/x.3", "runs/x.3.average"],
        ["runs/x.3.average", "runs/x.4"],
    ]


def test_only_other_seeds_are_put_together(tmp_path):
    runs = {"a": result(), "again": result(), "seed": result(seed=1, bleu=42.0)}
    runs["beam"] = result(seed=1, beam_size=1, bleu=10.0)
    runs["data"] = result(seed=1, data_sha256={"train": 64 * "0", "validation": 64 * "e"})
    runs["last"] = result(seed=1, candidates={"last": 31.0})
    runs["language"] = result()
    runs["language"]["config"] |= {"data.source_language": "de", "data.target_language": "en"}
    # Runs that began with others are others.
    origin = result(seed=4, checkpoint="average")
    runs["begun"] = result(init_from=origin)
    runs["begun_seeds"] = result(seed=1, init_from=origin | {"seed": 5}, bleu=42.0)
    runs["begun_last"] = result(init_from=origin | {"checkpoint": "last"})
    splits = runs["beam"]["splits"]  # one that only this run has
    splits["test_2017"] = copy.deepcopy(splits["test"]) | {"name": "test_2017"}
    assert ours_of(tmp_path, runs) == {
        "a": "41.00 ± 1.41 (2 seeds)",
        "begun": "41.00 ± 1.41 (2 seeds)",
        **dict.fromkeys(("data", "last", "language", "begun_last"), "40.00"),
        "beam": "10.00",
    }
    del runs["seed"]["splits"]["test"]  # of a run that was recorded with less
    runs["a"]["splits"]["test_2017"] = splits["test_2017"]
    pages = results_page.pages(saved(tmp_path / "results", **runs))
    assert [row[5] for row in rows(pages["results/a.md"])[2:]] == ["10.00", "-", "-", "10.00"]


def test_every_setting_of_a_search_is_given_again(random_params, tmp_path):
    """A search is made with the flags of its own record, and shown with them."""
    settings = {"no_repeat_ngram": 3, "length_penalty": 0.3, "length_penalty_form": "power"}
    for search in (settings, {"beam_size": 1, "temperature": 0.5, "seed": 7}):
        model = trained_model(random_params, search=search)
        recorded = result(seed=2, **model.task.provenance())
        found = search_flags(recorded)
        assert found == dataclasses.asdict(model.task.translator.config)
        again = {f"decoding.{name}": value for name, value in found.items()}
        assert run_config.with_fields(model.config, again).decoding == model.config.decoding
        runs = {"a": result(seed=2), "b": recorded}
        assert [*ours_of(tmp_path / str(len(search)), runs)] == ["a", "b"]
        for name, value in search.items():
            assert f" --{name}={value}" in results_page.commands("b", recorded)[-1]
    # A search may leave out what the config asks for.
    recorded["config"] = recorded["config"] | {"decoding.brackets": True}
    assert search_flags(recorded)["brackets"] is False
    assert "--brackets=False" in results_page.commands("a", recorded)[-1]
    assert search_flags({"config": {}}) == {}  # a task without a search


def test_where_files_lie_is_not_recorded():
    config = demo.get_config()
    plain = history.recorded_fields(Config.from_dict(config.to_dict()))
    files = {"tokenizer.source_model": "/home/me/a.model", "training.init_from": "/home/me/run"}
    given = files | {"data.raw_dir": "/home/me", "training.seed": 3, "training.steps": 7}
    config.update_from_flattened_dict(
        given | {"tokenizer.source_model": None, "training.log_every": 9}
    )
    given |= {"data.corpora.bt.file": "/home/me/extra", "data.corpora.bt.weight": 2.0}
    files["data.corpora.bt.file"] = "/home/me/extra"
    with config.unlocked():
        config.data.corpora.bt = {"file": "/home/me/extra", "weight": 2.0}
    of_run = Config.from_dict(config.to_dict())
    recorded = history.recorded_fields(of_run)
    unset = "source_field", "target_field", "source_language", "target_language", "tag"
    mixed = {"data.corpora.bt.weight": 2.0} | {f"data.corpora.bt.{x}": None for x in unset}
    assert recorded == plain | {"training.seed": 3, "training.steps": 7} | mixed
    given |= {"tokenizer.target_model": None, "mesh.fsdp": 2}
    del files["tokenizer.source_model"]  # given to the newest start, and not in its config
    found = history.overrides_of({"overrides": given}, of_run)
    assert found == dict.fromkeys(files, "FILE") | {
        "training.steps": 7,
        "data.corpora.bt.weight": 2.0,
    }
    config.data.train_source = config.data.train_target = "/home/me/train"
    of_run = Config.from_dict(config.to_dict())
    assert history.recorded_fields(of_run) == recorded | {"data.dataset": None}
    texts = {"data.train_source": "FILE", "data.train_target": "FILE"}
    assert history.overrides_of({"overrides": given}, of_run) == found | texts


def test_what_is_written_can_be_read_until_it_is_changed(tmp_path):
    path, folder = tmp_path / "results" / "x.json", tmp_path / "results" / "x"
    outputs = Outputs({"sources": ["s"], "references": ["r"], "hypotheses": ["h"]}, {}, "")
    both = result()
    both["splits"] = {"test": both["splits"]["test"], "a/b": both["splits"]["validation"]}
    ledger.write(path, both, dict.fromkeys(both["splits"], outputs))
    assert ledger.read(path) == both
    assert ledger.saved_outputs(path, both, "test") == ["h"]
    assert gzip.decompress((folder / "a_b.txt.gz").read_bytes()) == b"h\n"
    assert (folder / "a_b.txt.gz").read_bytes()[4:8] == bytes(4)  # no time: the same each time
    # What an earlier result of the name had besides goes, and nothing else.
    (folder / "mine.txt").touch()
    del both["splits"]["a/b"]
    ledger.write(path, both, {"test": outputs})
    assert {file.name for file in folder.iterdir()} == {"test.txt.gz", "mine.txt"}
    whole = (folder / "test.txt.gz").read_bytes()
    altered = [gzip.compress(text) for text in (b"other\n", b"\xff\n", b"h\nh\n")]
    for content in (*altered, b"h\n", b"", whole[:-9], whole[:12] + b"\xff" + whole[13:]):
        (folder / "test.txt.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"x/test\.txt\.gz has been changed"):
            ledger.saved_outputs(path, both, "test")
    (folder / "test.txt.gz").unlink()
    with pytest.raises(UserError, match=r"cannot read .*x/test\.txt\.gz"):
        ledger.saved_outputs(path, both, "test")


def test_other_data_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path, x=result()) / "x.json"
    (tmp_path / "x").mkdir()
    for split in ("validation", "test"):
        (tmp_path / "x" / f"{split}.txt.gz").write_bytes(gzip.compress(b"h\n"))
    scores = {name: entry["scores"] for name, entry in result()["splits"].items()}
    task = Mock(
        sections=seq2seq.TASK.sections,
        content_sha256=lambda data, split: hash_of(("s", "r")),
        rescore=lambda data, split, hypotheses: scores[split],
    )
    monkeypatch.setattr(ledger, "find_task", lambda name: task)
    assert ledger.verify(path, None, None, None)
    # What saved outputs do not tell is not asked of them.
    with_model = result()
    of_model = {"score": 7.0, "definition": "of the model", "needs_model": True}
    with_model["splits"]["test"]["scores"]["forced"] = of_model
    saved(tmp_path, x=with_model)
    assert ledger.verify(path, None, None, None)
    del of_model["needs_model"]
    saved(tmp_path, x=with_model)
    assert not ledger.verify(path, None, None, None)
    saved(tmp_path, x=result())
    # NaN, and a metric that another version has, are no agreement.
    for bleu, odd in (
        (40.01, {"odd": {"score": 1.0}}),
        (40.0, {"odd": {"score": math.nan}}),
        (40.0, {}),
    ):
        scores["test"] = {"bleu": {"score": bleu}, **odd}
        assert not ledger.verify(path, None, None, None)
    task.content_sha256 = lambda data, split: hash_of(("s", "q" if split == "test" else "r"))
    with pytest.raises(UserError, match=r"the test split is another text than that of .*x\.json"):
        ledger.verify(path, None, None, None)


def trained(tmp_path, *, last_step=3000, stopped_early=False, init_from=None):
    config = Config.from_dict(demo.get_config().to_dict())
    training = dataclasses.replace(config.training, steps=3000, init_from=init_from)
    config = dataclasses.replace(config, training=training)
    task = Mock(provenance=lambda: {"tokenizer_sha256": ["f" * 64]})
    chosen = Chosen("best", [1, 2, 3], last_step, stopped_early)
    return TrainedModel(tmp_path, config, task, chosen, params={}, extra={})


def test_what_cannot_be_recorded(tmp_path):
    def refused(message, **changes):
        with pytest.raises(UserError, match=message):
            history.check_can_be_repeated(trained(tmp_path, **changes))

    def begin(origin):
        write_atomically(tmp_path / ORIGIN, json.dumps(signed(origin)))

    for start in (None, {"step": 30}):
        if start:
            add_start(tmp_path, start)
        refused(r"starts\.jsonl does not say how this run was begun")
    add_start(tmp_path, {"step": 0})
    refused(r"starts\.jsonl names no config file, as a run from Python code has none")
    add_start(tmp_path, {"step": 0, "config_file": "configs/demo.py", "overrides": {}})
    for changes in ({}, {"last_step": 7, "stopped_early": True}):
        history.check_can_be_repeated(trained(tmp_path, **changes))
    refused("is at step 7 of 3000; train it to the end", last_step=7)
    both = dataclasses.replace(trained(tmp_path), others=[trained(tmp_path, last_step=7)])
    with pytest.raises(UserError, match="is at step 7 of 3000"):
        ledger.record(tmp_path / "x.json", ["test"], lambda **which: both, "best", None)
    # Of what it began with, the same is asked.
    known = {"starts": [{"step": 0}], "steps": 7, "stopped_early": False, "overrides": {}}
    known["config"] = {"training.steps": 7}
    begun = known | {"overrides": {"training.init_from": "FILE"}}
    stopped = known | {"steps": 6}
    for origin in (known, stopped | {"stopped_early": True}, begun | {"init_from": known}):
        begin(origin)
        history.check_can_be_repeated(trained(tmp_path, init_from="a"))
    no_starts, late = known | {"starts": []}, known | {"starts": [{"step": 3}]}
    for origin in (
        {"checkpoint": "best"},
        no_starts,
        late,
        stopped,
        begun,
        begun | {"init_from": {}},
    ):
        begin(origin)
        refused("does not have that from its beginning to its end", init_from="a")
    (tmp_path / ORIGIN).write_text("{}")
    refused(r"initial/origin\.json is damaged; restore it", init_from="a")
    (tmp_path / ORIGIN).unlink()
    refused("began with the parameters of another run, and initial", init_from="a")


def test_files_that_are_not_of_a_result_stay(tmp_path):
    def refused(name, message):
        with pytest.raises(UserError, match=message):
            ledger._check_files(tmp_path / name, ["test"])

    refused("x", r"--record=.*x: give a file name that ends in \.json")
    (tmp_path / "mine.json").write_text("[1, 2]")
    refused("mine.json", r"mine\.json is no result of this ledger")
    (tmp_path / "y").touch()
    refused("y.json", r"into .*/y, and .*/y is no such file")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "test.txt.gz").touch()
    ledger._check_files(tmp_path / "x.json", ["test"])
    (tmp_path / "x" / "corpus.txt").touch()
    refused("x.json", r"into .*/x, and .*corpus\.txt is no such file; move it")


def test_what_a_run_began_with_is_recorded_and_checked(tmp_path):
    model = trained(tmp_path, init_from="a")
    add_start(tmp_path, result()["starts"][0] | {"config_file": "configs/demo.py", "overrides": {}})
    line = {"step": 3000, "total/seconds": 1.0, "total/target_tokens": 2}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    def begin(**changes):
        write_atomically(tmp_path / ORIGIN, json.dumps(signed({**result(), **changes})))

    begin(params_sha256="1")
    run = history.run_of(model)
    assert run["init_from"] == result() | {"params_sha256": "1"}
    assert run["overrides"] == {"training.init_from": "FILE"}
    recorded = run | {"tokenizer_sha256": ["f" * 64]}

    def check():
        ledger.check_same_runs(tmp_path / "x.json", recorded, model)

    check()
    begin(params_sha256="2")  # trained again, on another machine
    check()
    for other in (
        {"checkpoint": "best"},
        {"checkpoint_steps": [1, 2]},
        {"config": result()["config"] | {"model.d_ff": 7}},
        {"init_from": result()},
    ):
        begin(**other)
        with pytest.raises(UserError, match=r"is not the run of .*: what it began with is"):
            check()
    (tmp_path / ORIGIN).unlink()
    with pytest.raises(UserError, match=r"what it began with is \[\] and was"):
        check()


def test_no_result(tmp_path):
    path, text = tmp_path / "x.json", json.dumps(result())
    with pytest.raises(UserError, match=r"cannot read the result .*x\.json: No such file"):
        ledger.read(path)
    for content in (
        *("", "[]", "{}", '{"splits": {}}', 99_999 * "["),
        text.replace("text_sha256", "text"),
        text.replace('"score":', '"points":'),
        text.replace('"score": 40.0', '"score": "40.0"'),
        *(json.dumps(result(init_from=x)) for x in ("x", {"seed": 1})),
        *(json.dumps(result(ensemble_with=["x"])), json.dumps(result(config={}))),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=r"x\.json is no result of this ledger"):
            ledger.read(path)


def test_curves(tmp_path):
    title = "multi30k/en-de-tok, en to de"
    results_page.draw(title, {"a": result()}, tmp_path / results_page.picture_name(title))
    assert (tmp_path / "multi30k_en-de-tok-en_to_de.png").read_bytes().startswith(b"\x89PNG")
    metrics = [{"step": 1, "train/nll": 3.0}, {"step": 2, "eval/validation/nll": 1.23456}]
    metrics.append({"step": 3, "eval/validation/nll": None, "eval/validation/odd": 0.0})
    metrics.append({"step": 4, "eval/validation/nll": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in metrics))
    found = history.validation_curves(trained(tmp_path, last_step=3))
    assert found == {"nll": [(2, 1.2346)], "odd": [(3, 0.0)]}


def test_what_the_commands_refuse(tmp_path):
    path = saved(tmp_path, text=result(), x=result()) / "text.json"
    content = result()
    content["config"]["data.dataset"] = None
    path.write_text(json.dumps(content))
    for options, message in (
        (["--verify=x.json", "--record=y.json"], "--record and --verify are given"),
        (["--explain=larger"], "there is no recipe 'larger'; give one of: base, big"),
        (["--verify=text.json"], "text.json is of text files; give the --workdir"),
        (["--record=y.json"], "--workdir is missing"),
        (["--explain=base", "--ensemble=x"], "--explain is for one run; leave --ensemble out"),
        (["--workdir=x", "--ensemble="], "--ensemble names no work directory; give one"),
        (["--verify="], "cannot read the result"),
        (["--verify=x.json", "--ensemble=x"], "--ensemble is given without --workdir"),
        (["--workdir=x", "--split="], "--split is empty"),
        (["--verify=x.json", "--beam_size=1"], "--beam_size is given, and --verify takes"),
    ):
        assert_refused(run("evaluate.py", *options, cwd=tmp_path), message)
    assert not (tmp_path / "y.json").exists()


# --- A stranger's result ------------------------------------------------------------------


def test_files_that_a_result_names_are_not_read(tmp_path, monkeypatch):
    """Not even how many lines they have is told."""
    (tmp_path / "secret").write_text("secret\n" * 17)
    sides = [f"{split}_{side}" for split in ("train", "test") for side in ("source", "target")]
    places = {f"data.{side}": str(tmp_path / "secret") for side in sides}
    content = result()
    content["config"] = content["config"] | places
    saved(tmp_path / "results", mine=content)
    path = tmp_path / "results" / "mine.json"
    data = ledger._recorded_data(path, content, seq2seq.TASK, None, None)
    assert str(tmp_path / "secret") not in map(str, dataclasses.asdict(data).values())
    assert (data.dataset, data.has_header) == (content["config"]["data.dataset"], False)


def test_outputs_that_a_link_leads_to_are_not_read(tmp_path):
    (tmp_path / "secret").write_text("h\n")
    saved(tmp_path / "results", mine=result())
    path = tmp_path / "results" / "mine.json"
    (tmp_path / "results" / "mine").mkdir()
    (tmp_path / "results" / "mine" / "test.txt.gz").symlink_to("../../secret")
    with pytest.raises(UserError, match=r"test\.txt\.gz is outside of"):
        ledger.saved_outputs(path, ledger.read(path), "test")


@pytest.mark.parametrize("name", ["multi30k_tiny-0", "multi30k_tiny-ensemble", "parsing_small-0"])
def test_damaged_results_are_refused_in_one_line(tmp_path, name):
    content, folder = json.loads((ROOT / "results" / f"{name}.json").read_text()), tmp_path / "r"
    path = folder / "x.json"
    folder.mkdir()

    def use():
        results_page.pages(folder)
        found = ledger.read(path)
        task = find_task(found["config"]["task.name"])
        ledger._recorded_data(path, found, task, None, "raw")
        nothing = {split: {} for split in found["splits"]}
        assert ledger.disagreements(found, nothing, ledger.TOLERANCE)
        for flags in (checkpoint_flags(found), search_flags(found)):
            assert isinstance(flags, dict)

    content["curve"] = {metric: curve[:2] for metric, curve in content["curve"].items()}
    used = []
    for altered in damaged(content, 50):
        path.write_bytes(altered)
        used.append(assert_used_or_refused(use, "", altered))
    assert 5 < sum(used) < 45
