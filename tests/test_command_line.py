"""The scripts from text files to scores and translations."""

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import sacrebleu
from processes import flags_of_a_job, run_together
from scripts import (
    ROOT,
    assert_refused,
    environment,
    final_state,
    metrics,
    run,
    succeeded,
    toy_flags,
    write_toy,
)

from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS
from transformer.models.loss import cross_entropy
from transformer.reports import ledger
from transformer.runs import run_config
from transformer.tasks import seq2seq
from transformer.tasks.source_gain import METRICS

ODD_PAIRS = [
    ("", ""),
    ("one  two ", " Eno  Owt"),
    ("three\u2028four\u0085", '"Eerht"\u2028Ruof'),
    ("\tfive\t", "“Evif”\r?"),
    ("one two " * 15 + "three", "Eno Owt " * 15 + "Eerht"),  # longer than a training row
    (" ", "Eno"),
    ("six ▁ seven", "Xis ▁ Neves"),
]


# --- A model that has learned something ---------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """The directory of a run that translates numbers."""
    directory = tmp_path_factory.mktemp("learned")
    write_toy(directory, train=499, validation=31, test=31)
    for i, language in enumerate(("en", "de")):
        odd = "".join(f"{pair[i]}\n" for pair in ODD_PAIRS)
        for split in ("validation", "test"):
            with (directory / f"{split}.{language}").open("a", newline="\n") as file:
                file.write(odd)
    arguments = toy_flags(
        data_test_source="test.en",
        data_test_target="test.de",
        model_d_model=32,
        model_d_ff=61,
        model_dropout=0.0,
        optimizer_warmup_steps=60,
        training_tokens_per_update=17 * 31,
        training_steps=240,
        training_log_every=40,
        training_checkpoint_every=120,
        training_full_validation_every=120,
        training_best_metric="bleu",
        decoding_max_extra_length=7,
    )
    arguments.append("--workdir=run")
    said = succeeded(run("train.py", *arguments, cwd=directory, pictures=True)).out
    (directory / "said").write_bytes(said)
    return directory / "run"


@pytest.fixture(scope="module")
def scores(learned) -> dict:
    """Those of the test split, by the command that the last line of training advertises."""
    end, _, command = (learned.parent / "said").read_text().splitlines()[-1].partition("; ")
    assert end.startswith("done     ")
    _, script, *arguments = shlex.split(command)
    succeeded(run(Path(script).relative_to(ROOT), *arguments, cwd=learned.parent))
    assert (learned / "eval/latest").readlink() == Path("test")
    return json.loads((learned / "eval" / "test" / "scores.json").read_text())


def test_the_loss_falls(learned):
    losses = [line["train/nll"] for line in metrics(learned) if "train/nll" in line]
    assert losses[0] > 2 > 0.8 > losses[-1]
    assert losses == sorted(losses, reverse=True)


def test_the_work_directory(learned):
    names = {path.name for path in learned.iterdir()} - {"eval"}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    assert names - {events} == {
        "config.json",
        "data.json",
        "files.json",
        "tokenizer.model",
        "metrics.jsonl",
        "starts.jsonl",
        "learning_curve.png",
        "report.html",
        "checkpoints",
    }
    assert sorted(path.name for path in (learned / "checkpoints").iterdir()) == ["120", "240"]


def test_a_work_directory_is_enough_to_go_on(toy_run, tmp_path):
    shutil.copytree(toy_run, tmp_path, dirs_exist_ok=True)
    refused = run("train.py", "--workdir=run", "--config.training.steps=1", cwd=tmp_path)
    assert_refused(refused, "run has a checkpoint of step 2, and training.steps is 1")
    more = ["--workdir", "run", "--config.training.steps=3"]
    assert b"start    at step 2 of 3" in succeeded(run("train.py", *more, cwd=tmp_path)).out
    assert metrics(tmp_path / "run")[-1]["step"] == 3
    begun, gone_on = map(json.loads, (tmp_path / "run/starts.jsonl").read_text().splitlines())
    assert gone_on["config_file"] == begun["config_file"]
    assert gone_on["overrides"] == begun["overrides"] | {"training.steps": 3}


@pytest.mark.slow
def test_data_are_prepared_where_there_is_a_network(tmp_path):
    write_toy(tmp_path, train=97, validation=5)
    said = succeeded(run("train.py", *toy_flags(), "--workdir=run", "--prepare", cwd=tmp_path)).out
    assert said.endswith(b"train.py --workdir=run\n")
    assert b"preparing it" not in said  # which is about data sets
    paths = [path for path in (tmp_path / "run").iterdir() if path.name != "lock"]
    names = {path.name for path in paths}
    assert names == {"config.json", "data.json", "files.json", "tokenizer.model"}
    before = [path.read_bytes() for path in paths]
    succeeded(run("train.py", "--workdir=run", cwd=tmp_path))
    assert [path.read_bytes() for path in paths] == before


def test_fine_tuning_is_one_short_command(toy_run, tmp_path):
    shutil.copytree(toy_run, tmp_path, dirs_exist_ok=True)
    origin = toy_run / "run"
    short = [f"--config.training.init_from={origin}", "--config.training.steps=1"]
    assert_refused(run("train.py", *short, cwd=tmp_path), "--workdir is missing; name a folder")
    done = succeeded(run("train.py", *short, "--workdir=tuned", cwd=tmp_path))
    assert f"initial  the best of {origin}, step(s) 2".encode() in done.out
    first = [metrics(workdir)[0]["train/nll"] for workdir in (tmp_path / "tuned", origin)]
    assert first[0] < first[1] - 0.5
    assert run_config.load(tmp_path / "tuned").model == run_config.load(origin).model
    (start,) = map(json.loads, (tmp_path / "tuned/starts.jsonl").read_text().splitlines())
    assert start["config_file"] == "configs/base.py"
    assert start["overrides"]["model.d_model"] == 14
    assert start["overrides"]["training.steps"] == 1


def evaluate(workdir: Path, *arguments: str) -> dict:
    """The scores of the test split, or of what the flags say."""
    succeeded(run("evaluate.py", "--workdir=run", *arguments, cwd=workdir.parent))
    return json.loads((workdir / "eval" / "latest" / "scores.json").read_text())


def test_bleu_in_training_is_bleu_of_evaluate(learned, scores):
    """The two splits have the same text."""
    in_training = [line for line in metrics(learned) if "eval/validation/bleu" in line]
    assert [line["step"] for line in in_training] == [120, 240]
    (best,) = (line for line in in_training if [line["step"]] == scores["checkpoint_steps"])
    assert scores["bleu"]["score"] == best["eval/validation/bleu"]
    for name in METRICS:  # packed in training, and not here
        value = best[f"eval/validation/{name}"]
        assert scores[name]["score"] == pytest.approx(value, abs=1e-5)


def test_validation_nll_is_of_every_sentence(learned):
    source, target = Tokenizers.load(learned)
    model = seq2seq.restore(run_config.load(learned), learned).model
    texts = [(learned.parent / f"validation.{x}").read_bytes().decode() for x in ("en", "de")]
    pairs = list(zip(*(text.split("\n")[:-1] for text in texts)))
    # One sentence a row, without packing.
    src_BS, tgt_in_BT, tgt_out_BT = np.zeros((3, len(pairs), 223), np.int32)
    for i, (english, german) in enumerate(pairs):
        src, tgt = [*source.encode(english), EOS], [*target.encode(german), EOS]
        src_BS[i, : len(src)], tgt_out_BT[i, : len(tgt)] = src, tgt
        tgt_in_BT[i, : len(tgt)] = [BOS, *tgt[:-1]]
    bound = jax.jit(lambda params: model.bind(params)(src_BS, tgt_in_BT))
    logits_BTV = bound(final_state(learned).params)
    loss = cross_entropy(logits_BTV, tgt_out_BT, tgt_out_BT > 0, label_smoothing=0.0)
    found = metrics(learned)[-1]["eval/validation/nll"]
    np.testing.assert_allclose(found, loss.nll / loss.tokens, rtol=1e-4)


def test_every_sentence_is_scored_whole(learned, scores):
    texts = {}
    for name in ("sources", "references", "hypotheses"):
        content = (learned / "eval" / "test" / f"{name}.txt").read_bytes().decode()
        *texts[name], end = content.split("\n")
        assert end == ""
    # Sources and references are the lines of the files, to the byte.
    directory = learned.parent
    for name, language in (("sources", "en"), ("references", "de")):
        content = (directory / f"test.{language}").read_bytes().decode()
        assert texts[name] == content.split("\n")[:-1]
    assert scores["examples"] == len(texts["hypotheses"]) == 31 + len(ODD_PAIRS)
    blank = [i for i, text in enumerate(texts["hypotheses"]) if text == ""]
    assert set(blank) >= {31, 36}
    # The numbers are those of the files.
    corpus = texts["hypotheses"], [texts["references"]]
    assert scores["bleu"]["score"] == sacrebleu.corpus_bleu(*corpus).score
    assert scores["chrf"]["score"] == sacrebleu.corpus_chrf(*corpus).score
    assert scores["ter"]["score"] == sacrebleu.corpus_ter(*corpus).score
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in scores["bleu"]["signature"]
    assert scores["bleu"]["score"] > 10


def test_scores_say_what_they_are_of(learned, scores):
    assert scores["split"] == "test"
    assert scores["beam_size"] == 4
    assert scores["length_penalty"] == {"name": "gnmt", "alpha": 0.6}
    config = run_config.load(learned)
    assert scores["config_sha256"] == config.sha256
    assert scores["tokenizer_sha256"] == [Tokenizers.load(learned).source.sha256]

    average = evaluate(learned, "--checkpoint=average", "--average_last=2", "--bleu_tokenizer=char")
    assert average["checkpoint_steps"] == [120, 240]
    assert "|tok:char|" in average["bleu"]["signature"]
    name = "test-average-2-at-240-bleu_tokenizer=char"
    assert json.loads((learned / "eval" / name / "scores.json").read_text()) == average
    # It is the hash of WORKDIR/config.json, with any flags.
    assert average["config_sha256"] == config.sha256


@pytest.mark.slow
def test_test_sets_of_ones_own(learned, scores):
    """Files are scored as the split is that has them; more references match more."""
    directory, expected = learned.parent, scores
    own = ["--source=test.en", "--reference=test.de"]
    scores = evaluate(learned, *own)
    assert (learned / "eval/latest").readlink() == Path("test.en")
    of_test = ["--split=test", f"--hypotheses={learned / 'eval/test/hypotheses.txt'}"]
    again = evaluate(learned, *of_test)
    assert (learned / "eval/latest").readlink() == Path("test-of-hypotheses.txt")
    assert scores["bleu"] == again["bleu"] == expected["bleu"]
    hypotheses = [learned / "eval" / x / "hypotheses.txt" for x in ("test", "test.en")]
    assert hypotheses[0].read_bytes() == hypotheses[1].read_bytes()

    shutil.copy(hypotheses[0], directory / "second.de")
    both = evaluate(learned, own[0], "--reference=test.de,second.de")
    # Where the second file has a blank line, it has no reference.
    paths = hypotheses[0], directory / "test.de"
    found, first = (path.read_bytes().decode().split("\n")[:-1] for path in paths)
    given = [first, [line if line.strip() else None for line in found]]
    assert both["bleu"]["score"] == pytest.approx(sacrebleu.corpus_bleu(found, given).score)
    assert both["bleu"]["score"] > 90 > expected["bleu"]["score"]
    assert both["bleu"]["signature"].startswith("nrefs:var|")
    folder = (learned / "eval/latest").readlink().name  # not that of the one reference
    assert re.fullmatch("test.en-[0-9a-f]{8}", folder)
    names = {path.name for path in (learned / "eval" / folder).iterdir()}
    assert names >= {"references.txt", "references.2.txt"}
    assert list(both["inputs"]) == ["source", "reference", "reference.2"]
    assert both["inputs"]["source"]["path"] == str(directory / "test.en")
    # Elsewhere, the same evaluation has its usual name.
    before = sorted((learned / "eval").iterdir())
    evaluate(learned, *own, "--output_dir=other", "--bleu_tokenizer=char")
    assert sorted((learned / "eval").iterdir()) == before
    scores = json.loads((directory / "other/latest/scores.json").read_text())
    assert (directory / "other/latest").readlink().name == "test.en-bleu_tokenizer=char"
    assert "|tok:char|" in scores["bleu"]["signature"]

    folder = Path(environment()["SACREBLEU"]) / "wmt14/full"
    folder.mkdir(parents=True)
    for side in ("src", "ref", "docid", "genre", "origlang"):
        text = directory / f"test.{'en' if side == 'src' else 'de'}"
        shutil.copy(text, folder / f"wmt14_full.en-de.{side}")
    by_name = evaluate(learned, "--testset=wmt14/full", "--checkpoint=120")
    assert (learned / "eval/latest").readlink() == Path("wmt14_full-step-120")
    assert by_name["split"] == "wmt14/full"
    alone = ["--hypotheses=second.de", "--testset=wmt14/full", "--languages=en-de"]
    said = succeeded(run("evaluate.py", *alone, cwd=directory)).out.decode()
    assert f"bleu {expected['bleu']['score']:42.2f}  nrefs:1|" in said
    assert "report" not in said


def test_translations_by_others_without_a_run(tmp_path):
    (tmp_path / "ref").write_text("我很讨厌猫\n")
    for system, text in (("a", "我很喜欢猫"), ("b", "我很讨厌猫")):
        (tmp_path / system).mkdir()
        (tmp_path / system / "out").write_text(f"{text}\n")
    command = ["evaluate.py", "--reference=ref", "--output_dir=scores", "--hypotheses"]
    for system, languages in (("a", "en-zho_Hans"), ("b", "pt-BR-zh-CN")):
        succeeded(run(*command, f"{system}/out", f"--languages={languages}", cwd=tmp_path))
    first, second = sorted((tmp_path / "scores").glob("ref-of-out*/scores.json"))
    first, second = (json.loads(path.read_text()) for path in (first, second))
    assert first["inputs"]["hypotheses"]["path"] == str(tmp_path / "a/out")
    assert "|tok:zh|" in first["bleu"]["signature"]
    assert [first["ter"]["score"], second["ter"]["score"]] == [pytest.approx(40), 0]
    unknown = run(*command, "a/out", "--languages=en-cn", cwd=tmp_path)
    assert "warning: the references look like text without spaces" in succeeded(unknown).err
    refused = run(*command, "a/out", "--languages=en-th", cwd=tmp_path)
    assert_refused(refused, "the target language th has no spaces between words")


@pytest.mark.slow
def test_a_long_line_of_a_test_set(learned, scores):
    """It is translated in pieces, so that no search is as long as it."""
    directory = learned.parent
    lines = (directory / "test.en").read_text().splitlines()[:3]
    sources = [lines[0], "one two three " * 1000, *lines[1:]]
    (directory / "long.en").write_text("".join(f"{line}\n" for line in sources))
    (directory / "long.de").write_text("Eno\n" * 4)
    told = succeeded(
        run(
            *("evaluate.py", "--workdir=run", "--source=long.en", "--reference=long.de"),
            cwd=directory,
        )
    )
    assert "sentence 2 has more than 120 tokens, 4 times the longest of training" in told.err
    alone = (learned / "eval/test/hypotheses.txt").read_text().splitlines()[:3]
    found = (learned / "eval/long.en/hypotheses.txt").read_text().splitlines()
    assert [found[0], *found[2:]] == alone
    assert len(found[1].split()) > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source=test.en"], "--source is given without --reference; to translate without"),
        (["--reference=test.de"], "--reference is given without --source or --hypotheses; give"),
        (["--source=test.en", "--reference="], "--reference names no file; give one, or several"),
        (["--source=test.en", "--reference=train.de"], "test.en has 38 lines and train.de has 499"),
        (["--source=x", "--reference=test.de"], "cannot read x: No such file"),
        (["--hypotheses=train.de"], "train.de has 499 lines and test has 38; line n of both"),
        (["--testset=wmt14/ful"], "no test set 'wmt14/ful'; did you mean 'wmt14/full'"),
        (["--testset=mtedx/test"], "test set mtedx/test has no en-de; it has: el-en, es-en"),
        (["--testset=wmt14", "--split=test"], "--split and another test set are given; leave one"),
        (["--testset=wmt14", "--record=x"], "--testset is given, and --record is of the splits"),
        (
            ["--checkpoint=newest"],
            "--checkpoint=newest: it must be last, best, average, ema, or a step",
        ),
        (
            ["--checkpoint=7"],
            "run has no checkpoint of step 7; it has: 120, 240 (training.k",
        ),
        (["--record=x.json", "--bleu_tokenizer=char"], "--record takes that from the run's config"),
        (["--explain=base", "--output_dir=x"], "--output_dir is given, and --explain writes nothi"),
        (["--output_dir=test.en/x"], "cannot write test.en/x/test/scores.json: Not a directory; m"),
        (["--hypotheses=test.de", "--beam_size=1"], "--hypotheses translates nothing; leave --be"),
        (["--hypotheses=test.de", "--test_file=x"], "data.test_file and data.test_source are both"),
        (
            ["--compare=nowhere"],
            "--compare=nowhere is no file, and no folder with hypotheses.txt or",
        ),
        (["--compare=train.de"], "train.de has 499 lines and test has 38; line n of both"),
        (
            ["--compare=test.de", "--explain=base"],
            "--compare is given, and --explain is for one run",
        ),
        (["--languages=en-de"], "--languages is for --hypotheses without --workdir; leave it out"),
    ],
)
def test_test_sets_that_cannot_be_used(learned, arguments, message):
    refused = run("evaluate.py", "--workdir=run", *arguments, cwd=learned.parent)
    assert_refused(refused, message)


@pytest.mark.slow
def test_an_ensemble(learned):
    """Of a model and itself, which translates as the model alone does; of two processes."""
    alone = evaluate(learned, "--checkpoint=average", "--average_last=2")
    shutil.copytree(learned, learned.parent / "again")
    record = ["--workdir=run", "--ensemble=again", "--checkpoint=average", "--split=test"]
    record += ["--average_last=2"]
    command = [ROOT / "evaluate.py", *record, "--record=results/two.json"]
    jobs = [[*command, *job] for job in flags_of_a_job(2)]
    first, second = run_together(jobs, learned.parent)
    assert b"bleu" in succeeded(first).out
    assert succeeded(second).out == b""  # every sentence once, on the four devices of both
    own = learned / "eval" / "test-average-2-at-240"
    (both,) = own.parent.glob(f"{own.name}-ensemble-*")
    first, second = ((x / "hypotheses.txt").read_bytes() for x in (own, both))
    assert first == second
    together = json.loads((both / "scores.json").read_text())
    other = {name: alone[name] for name in ("checkpoint_steps", "config_sha256")}
    assert together["ensemble_with"] == [{"workdir": "again", **other}]
    verify = ["--verify=results/two.json", "--workdir=run"]
    agrees = run("evaluate.py", *verify, "--ensemble=again", cwd=learned.parent)
    assert b"14 of 14 scores agree" in succeeded(agrees).out
    refused = run("evaluate.py", *verify, cwd=learned.parent)
    assert refused.code == 2
    assert "work directories given: 1, runs of results/two.json: 2; give" in refused.err
    path = learned.parent / "results" / "two.json"
    result = ledger.read(path)
    (other_run,) = result["ensemble_with"]
    assert all(result[name] == value for name, value in other_run.items())
    other_run["config"]["training.seed"] = 7
    path.write_text(json.dumps(result))
    refused = run("evaluate.py", *verify, "--ensemble=again", cwd=learned.parent)
    assert refused.code == 2
    assert "again is not the run of results/two.json: training.seed is 0 and was 7" in refused.err
    # The other was trained on other text.
    config = json.loads((learned.parent / "again" / "config.json").read_text())
    config["data"]["train_source"] = config["data"]["train_target"]
    (learned.parent / "again" / "config.json").write_text(json.dumps(config))
    (learned.parent / "again" / "files.json").unlink()  # an edit on purpose
    refused = run("evaluate.py", *record, "--record=results/three.json", cwd=learned.parent)
    assert refused.code == 2
    assert "again and run were trained on different text" in refused.err
    shutil.rmtree(learned.parent / "again")


@pytest.mark.slow
def test_a_result_is_recorded_and_verified(learned):
    directory = learned.parent
    options = ["--workdir=run", "--split=test"]
    done = succeeded(run("evaluate.py", *options, "--record=results/toy.json", cwd=directory))
    result = ledger.read(directory / "results" / "toy.json")
    is_public = re.fullmatch("[0-9a-f]+", result["starts"][0]["commit"])
    assert (b"warning: the commit is" in done.out) == (not is_public)
    # 1. It says what was run, with what, and what came of it.
    assert result["config_file"] == "configs/base.py"
    assert result["overrides"]["model.d_ff"] == 61
    assert result["config"]["data.dataset"] is None
    assert result["overrides"]["data.train_source"] == "FILE"
    assert result["steps"] == 240
    logged = [line["total/target_tokens"] for line in metrics(learned) if "train/nll" in line]
    assert result["target_tokens"] == logged[-1]
    assert len(logged) == 6
    assert logged == sorted(set(logged))
    assert [start["step"] for start in result["starts"]] == [0]
    assert result["starts"][0]["jax"] == jax.__version__
    assert result["curve"]["bleu"][-1][0] == 240
    text = json.dumps(result)
    assert str(directory) not in text
    # 2. The checkpoint is the one with the higher validation BLEU, and all else is of that one.
    candidates = result["candidates"]
    assert candidates.keys() == {"best", "average"}
    assert result["checkpoint"] == max(candidates, key=candidates.get)
    scores = {name: split["scores"]["bleu"]["score"] for name, split in result["splits"].items()}
    assert scores["validation"] == max(candidates.values())
    steps = {"best": [240], "average": [120, 240]}[result["checkpoint"]]
    assert result["checkpoint_steps"] == steps
    # 3. The translations lie beside it.
    hypotheses = (directory / "results" / "toy" / "test.txt.gz").read_bytes()
    assert (
        gzip.decompress(hypotheses) == (learned / "eval" / "latest" / "hypotheses.txt").read_bytes()
    )
    # 4. What was recorded agrees with an export of the same checkpoint, until it is changed.
    chosen = ["--workdir=run", f"--checkpoint={result['checkpoint']}"]
    done = run("evaluate.py", *chosen, "--export=out/small", cwd=directory)
    said = f"written  out/small, the {result['checkpoint']} of run\n"
    assert succeeded(done).out.decode() == said
    small = directory / "out" / "small"
    sizes = [
        sum(path.stat().st_size for path in (workdir / "checkpoints" / "240").rglob("*"))
        for workdir in (learned, small)
    ]
    assert sizes[1] < 0.5 * sizes[0]  # two moments of each parameter are left out
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    verify = ["--verify=results/toy.json", "--workdir=out/small"]
    assert b"16 of 16 scores agree" in succeeded(run("evaluate.py", *verify, cwd=directory)).out
    result["splits"]["test"]["scores"]["bleu"]["score"] += 1
    changed = directory / "results" / "changed.json"
    changed.write_text(json.dumps(result))
    verify[0] = "--verify=results/changed.json"
    refused = run("evaluate.py", *verify, cwd=directory)
    assert refused.code == 1
    assert f"differs  test bleu: recorded {scores['test'] + 1:.2f}, now {scores['test']:.2f}" in (
        refused.out.decode()
    )
    shutil.rmtree(small / "eval")
    result["config"]["training.seed"] = 7
    changed.write_text(json.dumps(result))
    # 5. An export cannot be trained on or recorded.
    for script, arguments, message in (
        ("train.py", [*toy_flags(), "--workdir=out/small"], "small was exported without what"),
        (
            "evaluate.py",
            ["--workdir=out/small", "--record=b.json"],
            "give the work directory of the training",
        ),
        ("evaluate.py", [*chosen, "--export=out/small"], "out/small is there already; name a new"),
        ("evaluate.py", [*chosen, "--export=x", "--beam_size=1"], "--beam_size is given, and"),
        ("evaluate.py", ["--workdir=run", "--export_dtype=bfloat16"], "without --export; give"),
        ("evaluate.py", [*chosen, "--export=x", "--ensemble=run"], "--export is for one run; l"),
        (
            "export",
            ["--workdir=run", "--format=huggingface", "--output=out/x", "--int8"],
            "decoding.int8 is True, which Hugging Face",
        ),
        (
            "evaluate.py",
            ["--workdir=run", "--verify=results/changed.json"],
            "run is not the run of results/changed.json: training.seed is 0 and was 7",
        ),
    ):
        refused = run(script, *arguments, cwd=directory)
        assert (refused.code, message in refused.err) == (2, True), refused
    after = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    assert after == before


def test_translate_is_evaluate(learned, scores):
    flags = ["--workdir=run", "--checkpoint=last", "--long_lines=whole", "--input=test.en"]
    flags.append("--output=new/test.out")
    assert succeeded(run("translate.py", *flags, cwd=learned.parent)).out == b""
    hypotheses = (learned / "eval" / "test" / "hypotheses.txt").read_bytes()
    assert (learned.parent / "new" / "test.out").read_bytes() == hypotheses
    assert [path.name for path in (learned.parent / "new").iterdir()] == ["test.out"]
    shutil.rmtree(learned.parent / "new")
