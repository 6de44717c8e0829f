"""Every flag and every field whose value names a file or a folder is declared, and checked."""

import ast
import contextlib
import dataclasses
import threading
import typing
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from scripts import ROOT, assert_refused, run, succeeded

import transformer
from transformer import configs
from transformer.data.sources import Corpus
from transformer.models.family import FAMILIES, find_family
from transformer.runs import cli, provenance, run_config
from transformer.runs.config_fields import part_of
from transformer.runs.run_config import Config
from transformer.runs.sweep import sections_of
from transformer.system import buckets, paths
from transformer.system.compilation import use_cache
from transformer.system.errors import UserError
from transformer.tasks.task import TASKS, find_task

SCRIPTS = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.py"), *ROOT.glob("transformer/**/*.py"), *ROOT.glob("benchmarks/*")]
    if path.suffix == ".py"
)
# Flags whose text is no file and no folder. A new one belongs here, or is a DEFINE_path.
NO_PLACES = {
    *(
        "checkpoint",
        "shard",
        "split",
        "testset",
        "languages",
        "explain",
        "evaluate",
        "profile",
        "prompt",
        "source_language",
        "target_language",
    ),
    *("seeds", "only", "metric", "gpus", "classes", "pixels", "heads", "coordinator"),
    *("real_array", "generated_array", "widths", "prices", "engines"),
    *("worker", "device", "case"),
    *("source of visualize", "target of visualize", "source of pictures", "target of pictures"),
    *("source of look", "target of look", "words of look"),
}
# Likewise of fields, section by section.
NO_PLACE_FIELDS = {
    "task": "name statistics",
    "data": "corpora.source_field corpora.target_field corpora.tag "
    "corpora.source_language corpora.target_language "
    "bleu_tokenizer corrupt_files dataset document_field drop_duplicates label_field "
    "line_break long_documents masking other_sizes second_field source_field source_language "
    "source_script summary_field tags target_field target_language target_script test_split "
    "test_summary_fields text_field train_split validation_split "
    "train_trees validation_trees test_trees",  # patterns below data.raw_dir
    "tokenizer": "model_type target_model_type",
    "model": "activation attend attention cell compressed_attention count_from decoder_blocks "
    "dtype encoder encoder_blocks family halting halting_output head initial_state initialization "
    "feed_forward kernels layers local_attention loss_over norm normalization positions readout "
    "share_embeddings step_signal transition",
    "optimizer": "name schedule",
    "training": "best_metric freeze wandb",
    "decoding": "length_penalty_form",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def test_every_flag_is_declared():
    places, others, not_in_buckets = [], set(), set()
    for path in SCRIPTS:
        for name, call in calls(path):
            if name in ("DEFINE_path", "DEFINE_paths") and isinstance(call.args[0], ast.Constant):
                places.append(f"{path.stem}.{call.args[0].value}")
                if "in_buckets" in {keyword.arg for keyword in call.keywords}:
                    not_in_buckets.add(places[-1])
            if name in ("DEFINE_string", "DEFINE_list", "DEFINE_multi_string"):
                flag = call.args[0].value
                assert flag in NO_PLACES or f"{flag} of {path.stem}" in NO_PLACES, (path, flag)
                others |= {flag, f"{flag} of {path.stem}"}
            if name == "add_argument":  # argparse
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                is_text = given.keys().isdisjoint({"action", "choices"})
                if is_text:
                    assert given["type"] in ("int", "float", "argument"), (path, call.args[0].value)
    assert others >= NO_PLACES
    assert {"train.workdir", "model_flags.ensemble", "evaluate.reference", "evalb.gold"} <= {
        *places
    }
    assert len(places) > 60
    assert not_in_buckets == {"sweep.out", "sweep.results"}  # the folders of many runs


def fields_of_text() -> dict[str, bool]:
    """Every field of every task and family that may hold text; whether it is declared a place."""
    common = {field.name: field.type for field in dataclasses.fields(Config)}
    sections = [(name, common[name]) for name in ("task", "optimizer", "training", "mesh")]
    sections += [("model", find_family(name).config) for name in FAMILIES]
    sections += [section for name in TASKS for section in dict(find_task(name).sections).items()]
    sections.append(("data.corpora", Corpus))
    return {
        f"{name}.{field.name}": bool(field.metadata and field.metadata["place"])
        for name, section in sections
        for field in dataclasses.fields(section)
        if str in (field.type, *typing.get_args(field.type)) and not part_of(field.type)
    }


def test_every_field_is_declared():
    found = fields_of_text()
    others = {f"{section}.{x}" for section, names in NO_PLACE_FIELDS.items() for x in names.split()}
    assert {name for name, is_place in found.items() if not is_place} == others
    places = {"data.data_dir", "task.features", "training.init_from", "tokenizer.target_model"}
    assert places <= found.keys() - others


CONFIGS = "base bert_base classification parsing_paper sagan_cifar10 summarization lm"


def refusal(config: dict) -> str:
    try:
        Config.from_dict(config)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("in_buckets", [True, False])
def test_a_flag_takes_a_bucket_or_refuses_it_by_name(in_buckets, monkeypatch):
    monkeypatch.setitem(buckets.PACKAGES, "gs", "json")  # is installed
    parser = paths.PathParser("x", None, in_buckets)
    refused = pytest.raises(UserError, match=r"^--x is gs://b/y, and only local files")
    with contextlib.nullcontext() if in_buckets else refused:
        assert parser.parse("gs://b/y") == "gs://b/y"


def test_every_place_of_a_config_is_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(buckets.PACKAGES, "gs", "json")
    seen, value = set(), "~nosuchuser/x"
    for name in CONFIGS.split():
        config = sections_of(str(ROOT / "configs" / f"{name}.py"), {})
        for path, is_place in fields_of_text().items():
            section, field, *inner = path.split(".")
            if is_place and field in config.get(section, ()):

                def changed(value, section=section, field=field, inner=inner, config=config):
                    parts = {"x": {inner[0]: value}} if inner else value  # of data.corpora
                    return config | {section: config[section] | {field: parts}}

                shown = ".".join([section, field, *(["x", *inner] if inner else [])])
                assert not refusal(changed("gs://b/x")).startswith(f"{shown} is gs:")
                assert refusal(changed(value)).startswith(f"{shown} is ")
                seen.add(path)
    # A run of another machine can be loaded: its data are not needed to translate.
    changed = config | {"data": config["data"] | {"train_file": value}}
    run = Config.from_dict(changed, paths_are_here=False)
    run_config.save(tmp_path, run)
    assert run_config.load(tmp_path) == run
    assert seen == {path for path, is_place in fields_of_text().items() if is_place}


# --- The scripts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "arguments", "part"),
    [
        ("train.py", ["--workdir=az://b/run", "--prepare"], "--workdir is az://b/run, and only"),
        ("train.py", ["--workdir", "~nosuchuser/x"], "--workdir is ~nosuchuser/x, and no home"),
        ("train.py", ["--workdir=caf\udce9"], "not UTF-8; rename the file or folder"),
        ("train.py", ["--workdir=run [1]"], "{cwd}/run [1] has one of * ? [ in its name"),
        ("train.py", ["--config=http://b/c.py", "--config.model.d_ff=3"], "--config is http://b/c"),
        ("train.py", ["--config", "s3://c.py"], "--config is s3://c.py"),
        ("train.py", ["--config.data.data_dir=hdfs://x", "--prepare"], "data.data_dir is hdfs://x"),
        ("train.py", ["--config.training.init_from=az://b"], "training.init_from is az://b"),
        ("train.py", ["--config", "lm", "--config.model.z=1"], "--config=lm --help-config lists"),
        ("train.py", ["--config=no.py"], "there is no config file no.py (looked up in {cwd})"),
        ("train.py", ["--config=no.py", "--config.model.d_ff=3"], "no config file no.py (looked"),
        ("evaluate.py", ["--workdir=run", "--reference=a,az://b"], "--reference is az://b"),
        ("evaluate.py", ["--workdir=no"], "has no config.json (looked up in {cwd})"),
        ("translate.py", ["--workdir=run", "--input=no.en"], "no.en: No such file or directory (l"),
        ("translate.py", ["--workdir=run", "--output=file:///x"], "--output is file:///x"),
        ("sweep.py", [f"--config={ROOT}/configs/demo.py", "--out=gs://x"], "--out is gs://x"),
        ("export", ["--workdir=r", "--output=az://x"], "--output is az:"),
        ("evalb", ["--gold=gs:///x"], "--gold is gs:///x, which is no address"),
        ("benchmarks/profile_summary.py", ["gs://x"], "an argument is gs://x"),
    ],
)
def test_a_script_says_so_in_one_line_and_writes_nothing(script, arguments, part, tmp_path):
    assert_refused(run(script, *arguments, cwd=tmp_path), part.format(cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_none_unsets_a_field(tmp_path):
    given = ["dataset=None", "raw_dir=x", "raw_dir=None", "train_source=a", "train_target=b"]
    given += ["test_source=None"]
    arguments = [*(f"--config.data.{x}" for x in given), "--config.optimizer.decay_steps=None"]
    base = "--config", "base"
    said = succeeded(run("train.py", *base, *arguments, "--fields", cwd=tmp_path)).out.decode()
    lines = said.splitlines()
    expected = [f"  --config.{x}=" for x in ("data.raw_dir", "data.test_source")]
    expected.append("  --config.optimizer.decay_steps=")
    expected.append("  --config.data.dataset=   (configs/base.py: hf:wmt/wmt14:de-en)")
    assert {*expected} <= {*lines}
    result = run("train.py", *base, "--config.model.d_ff=None", cwd=tmp_path)
    assert_refused(result, "config.model.d_ff is None; it must be of type int")


@pytest.mark.parametrize("name", ["base", "base.py", "configs/base.py", f"{ROOT}/configs/base.py"])
def test_a_preset_is_found_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configs.find(name) == str(ROOT / "configs/base.py")
    assert provenance.relative(configs.find(name)) == "configs/base.py"


def test_a_file_goes_before_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/base.py").touch()
    assert configs.find("configs/base.py") == "configs/base.py"
    assert configs.find("~/no.py") == f"{Path.home()}/no.py"


# --- Without a script ---------------------------------------------------------------------


def test_load_and_the_folder_of_compiled_programs(monkeypatch):
    for folder in ("az://b/run", Path("gs://b/run")):
        with pytest.raises(UserError, match=r"^workdir is (az|gs):/"):
            transformer.load(folder)
    with pytest.raises(UserError, match=r"^ensemble\[0\] is az://b"):
        transformer.load("run", ensemble=["az://b"])
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://b")
    jax.config.update("jax_compilation_cache_dir", "gs://b")
    try:
        with pytest.raises(UserError, match=r"^JAX_COMPILATION_CACHE_DIR is gs://b"):
            use_cache()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_helper_thread_that_fails_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", cli._say_that_a_thread_failed)
    for error in (NotImplementedError("a\nb"), SystemExit()):

        def fail(error=error):
            raise error

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    expected = "warning: a helper thread has ended (NotImplementedError: a b); the work goes on\n"
    assert capsys.readouterr().err == expected
