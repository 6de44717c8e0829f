"""The page about runs, and the table."""

import csv
import dataclasses
import json
import os
import re
import shutil

import pytest
from damage import as_lines, assert_used_or_refused, damaged
from scripts import assert_refused, run, succeeded
from small_configs import MODEL, PAPER

from transformer.metrics.scores import corpus_scores
from transformer.reports import run_report, sweep_report, translations
from transformer.reports.run_report import page, run_of
from transformer.runs import run_config
from transformer.runs.provenance import add_start
from transformer.system.errors import UserError
from transformer.system.files import write_json

SCRIPT = "report"
REFERENCES = [f"das ist der Satz Nummer {i} hier ." for i in range(30)]
SOURCES = [f"this is <b>{i}</b> & more" for i in range(30)]


def write_run(workdir, d_ff, hypotheses, steps=40):
    config = dataclasses.replace(PAPER, model=dataclasses.replace(MODEL, d_ff=d_ff))
    run_config.save(workdir, config)
    lines = []
    for step in range(10, steps + 1, 10):
        train = {"train/nll": 9 / step, "train/tokens_per_second": 100.0 + step}
        lines.append(
            {"step": step, **train, "total/target_tokens": 1e5 * step, "total/seconds": 6.0 * step}
        )
        lines.append({"step": step, "eval/validation/nll": abs(30 - step) + 1.0})
    add_start(
        workdir, {"step": 0, "config_file": "configs/x.py", "overrides": {"model.d_ff": d_ff}}
    )
    facts = {"counts": {"dropped: source too long": 17}, "lengths": {"tokens": [0, 2, 5]}}
    write_json(workdir / "data.json", facts)
    (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if hypotheses:
        folder = workdir / "eval/test"
        folder.mkdir(parents=True)
        texts = {"sources": SOURCES, "references": REFERENCES, "hypotheses": hypotheses}
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in text))
        scores = corpus_scores(hypotheses, REFERENCES, target_language="de")
        (folder / "scores.json").write_text(json.dumps({**scores, "examples": 30}))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    write_run(directory / "a", 7, [*REFERENCES[:29], "<script>alert(1)</script>"])
    write_run(directory / "b", 9, ["das ist falsch", *REFERENCES[1:]], steps=30)
    write_run(directory / "unfinished", 7, None, steps=10)
    return directory


def test_a_page_about_a_run(directory):
    said = succeeded(run(SCRIPT, "--workdir=a", cwd=directory)).out.decode()
    facts = dict(line.split("  ", 1) for line in said.splitlines()[:-1])
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["best nll"] == "1"
    assert facts["last nll"] == "11"
    assert facts["updates"] == "40"
    assert facts["million target tokens"] == "4"
    assert facts["minutes"] == "4"
    assert facts["tokens per second"] == "130"  # the upper of the two in the middle
    page = (directory / "a/report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "this is &lt;b&gt;29&lt;/b&gt; &amp; more" in page
    bleu = json.loads((directory / "a/eval/test/scores.json").read_text())["bleu"]
    assert f"{bleu['score']:.2f}" in page
    assert bleu["signature"] in page
    assert page.count("<svg") == 3  # two curves, and how long sentences are
    assert not re.search('src="(?!data:)', page)
    assert 'href="http' not in page
    assert "that differ most" not in page
    assert "configs/x.py --config.model.d_ff=7" in page
    assert (
        "<bdi>model.d_ff</bdi></td><td class=n><bdi>7</bdi></td><td class=n><bdi>2,048</bdi>"
        in page
    )
    assert "<bdi>dropped: source too long</bdi></td><td class=n><bdi>17</bdi>" in page
    assert "length ratio, a" in page


def test_runs_of_one_name_have_a_curve_each(directory, tmp_path):
    for part in ("old", "new"):
        write_run(tmp_path / part / "a", 7, None)
    names = ["--workdir=old/a,new/a", "--out=both.html"]
    said = succeeded(run(SCRIPT, *names, cwd=tmp_path)).out.decode()
    assert said.splitlines()[0].split() == ["run", "old/a", "new/a"]
    page = (tmp_path / "both.html").read_text()
    assert page.count("</b> <bdi>old/a</bdi>") == page.count("</b> <bdi>new/a</bdi>") == 1
    nats = page.split("<svg")[1]
    # Of each run training and validation.
    assert [nats.count(f"fill: none; stroke: {colour}") for colour in COLOURS] == [2, 2, 0]


COLOURS = "#1f77b4", "#ff7f0e", "#2ca02c"  # of the first run, the second, the third


def metrics_of(*names):
    return [{"step": step, **dict.fromkeys(names, 3.5 + step)} for step in (10, 20)]


def test_runs_are_compared(tmp_path):
    """Scores first and long paths last; a run has one colour, whatever the others lack."""
    made = []
    for name, path, metrics in [
        ("a", "x", metrics_of("eval/validation/nll", "train/grad_norm")),
        ("b", "/a/long/path/to/the/data/of/this", metrics_of("eval/validation/bleu")),
        ("c", "x", metrics_of("eval/validation/bleu", "train/grad_norm")[:1]),
    ]:
        write_run(tmp_path / name, 7 + len(made), None)
        one = run_of(tmp_path / name)
        data = dataclasses.replace(one.config.data, raw_dir=path)
        scores = {"test": {"bleu": {"score": 20.5, "signature": "s"}}}
        config = dataclasses.replace(one.config, data=data)
        made.append(one._replace(config=config, metrics=metrics, scores=scores))
    head, _ = run_report.table(made)
    assert head[:3] == ["run", "test bleu", "best nll"]
    assert head.index("last bleu") < head.index("model.d_ff") < head.index("updates")
    assert head[-1] == "data.raw_dir"
    written = page(made)
    assert 'name="viewport"' in written
    assert written.index("test bleu") < written.index("<svg") < written.index("<h2>Configs")
    nats, bleu, gradient = written.split("<svg")[1:4]
    used = [[f"stroke: {c}" in panel for c in COLOURS] for panel in (nats, bleu, gradient)]
    assert used == [[True, False, False], [False, True, True], [True, False, True]]


def test_a_damaged_or_foreign_run(tmp_path):
    write_run(tmp_path / "a", 7, None)
    for name, content in (
        ("eval/test/scores.json", "[]"),
        ("eval/test/scores.json", '{"bleu": {"score": "x"}}'),
        ("data.json", '{"counts": [1], "lengths": 3}'),
        ("data.json", '{"counts": {}, "lengths": {"a": ["b"]}}'),
        ("starts.jsonl", "[]\n"),
    ):
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        with pytest.raises(UserError, match=f"{path.name}.* is damaged"):
            run_of(tmp_path / "a")
        path.unlink()
    # One that a program began says nothing of a file.
    (tmp_path / "a/starts.jsonl").write_text('{"step": 0}\n')
    assert "<code>" not in page([run_of(tmp_path / "a")])


def test_a_report_at_the_end_of_a_training_never_fails_it(directory, tmp_path, capsys):
    run_report.write(tmp_path / "nowhere")
    assert "warning: no report: UserError: " in capsys.readouterr().err
    run_report.write(directory / "unfinished")
    assert "Curves" in (directory / "unfinished/report.html").read_text()


def test_runs_side_by_side(directory):
    command = [SCRIPT, "--workdir=a,b,unfinished", "--out=compared.html", "--format=csv"]
    said = succeeded(run(*command, cwd=directory)).out.decode()
    rows = {row["run"]: row for row in csv.DictReader(said.splitlines())}
    pattern = [SCRIPT, "--workdir=*", "--format=csv"]
    assert succeeded(run(*pattern, cwd=directory)).out.decode() == said
    assert [rows[name]["model.d_ff"] for name in ("a", "b", "unfinished")] == ["7", "9", "7"]
    assert [rows[name]["best nll"] for name in ("a", "b", "unfinished")] == ["1", "1", "21"]
    assert rows["unfinished"]["test bleu"] == ""
    assert float(rows["a"]["test bleu"]) > 90
    assert "model.d_k" not in rows["a"]
    page = (directory / "compared.html").read_text()
    differing = page[page.index("that differ most") :]
    assert differing.index("das ist falsch") < differing.index(REFERENCES[3])


def test_what_is_refused(directory):
    for flags, message in (
        ([], "no run is given"),
        (["--workdir=nowhere"], "nowhere is not a work directory"),
        (["--workdir=a", "--out=a"], "cannot write a: Is a directory"),
    ):
        assert_refused(run(SCRIPT, *flags, cwd=directory), message)


# --- A stranger's run ---------------------------------------------------------------------


@pytest.fixture
def strangers(directory, tmp_path):
    shutil.copytree(directory / "b", tmp_path / "run")
    (tmp_path / "secret").write_text("".join(f"secret {i}\n" for i in range(30)))
    return tmp_path / "run"


def test_texts_that_a_link_leads_to_are_not_shown(strangers, capsys):
    for name in ("sources", "references", "hypotheses"):
        path = strangers / "eval/test" / f"{name}.txt"
        path.rename(own := path.with_suffix(".own"))
        path.symlink_to("../../../secret")
        with pytest.raises(UserError, match=f"{path} is outside of"):
            translations.read(strangers, "test")
        own.replace(path)
    path.unlink()
    path.symlink_to("../../../secret")
    assert "secret" not in page([run_of(strangers)])
    assert f"warning: without the texts of test: {path} is outside" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "starts.jsonl", "data.json", "eval/test/scores.json"]
)
def test_only_plain_files_of_the_run_are_read(strangers, name):
    path = strangers / name
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(strangers.parent / "secret"),
    ):
        path.unlink()
        make(path)
        with pytest.raises(UserError, match=f"{name} is (outside of|a pipe)"):
            run_of(strangers)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "starts.jsonl", "data.json", "eval/test/scores.json"]
)
def test_damaged_files_are_refused_in_one_line(strangers, name):
    encode = as_lines if name.endswith("l") else None
    path = strangers / name
    text = path.read_text()
    content = [json.loads(line) for line in text.splitlines()] if encode else json.loads(text)

    def use():
        run = run_of(strangers)
        run_report.table([run, run])
        run_report._config(run, named=False)
        for split in run.scores:
            run_report._scores([run], split)
        sweep_report._by_column(run)

    used = []
    for altered in damaged(content, 60, encode):
        path.write_bytes(altered)
        used.append(assert_used_or_refused(use, path.name, altered))
    assert 5 < sum(used) < 55
