import dataclasses
import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from damage import assert_used_or_refused, damaged
from small_configs import config_of

from configs import base, classification, lm
from transformer.runs import history, resume_config, sweep, trusted_paths
from transformer.runs.renamed_fields import renew
from transformer.runs.run_config import (
    FORMAT,
    Config,
    check_workdir,
    flat,
    load,
    save,
    type_of_field,
    with_fields,
)
from transformer.system.errors import UserError
from transformer.system.files import temporary_beside

ROOT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")
FIELDS = [(section, field) for section, fields in base.get_config().items() for field in fields]


def base_dict(**changes) -> dict:
    """configs/base.py, with changes such as model_d_model=14."""
    config = base.get_config().to_dict()
    for name, value in changes.items():
        section, _, field = name.partition("_")
        config[section][field] = value
    return config


def base_experiment(**changes) -> Config:
    return Config.from_dict(base_dict(**changes))


# --- The presets --------------------------------------------------------------------------


# What is only counted or compared: it sizes nothing.
COUNTED = {
    *("optimizer.warmup_steps", "optimizer.decay_steps", "tokenizer.sample_size", "decoding.seed"),
    *("training.steps", "training.seed", "training.log_every", "training.checkpoint_every"),
    *("training.full_validation_every", "training.keep_last", "training.patience"),
    *("training.rollback_after", "training.max_rollbacks", "optimizer.plateau_patience"),
    *("task.average_from", "task.samples_every", "task.num_scored"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_an_experiment(name):
    module = importlib.import_module(f"configs.{name}")
    config = Config.from_dict(module.get_config().to_dict())
    assert module.get_config().is_locked
    # The docstring says how to run it.
    assert f"--config=configs/{name}.py" in module.__doc__ or name == "demo"
    # What sizes arrays or loops has a bound: a billion is refused before anything is allocated.
    for section, values in config.sections.items():
        for field in dataclasses.fields(values):
            path = f"{section}.{field.name}"
            if field.type in (int, int | None) and path not in COUNTED:
                with pytest.raises(UserError, match=rf"{path} (is|=) 1000000000\b"):
                    with_fields(config, {path: 10**9})


RUNS = {
    "algorithmic": 12,
    "chinese": 4,
    "german_english": 5,
    "glue": 40,
    "parsing": 4,
    "table3": 60,
    "table3_paper": 20,
}


@pytest.mark.parametrize("name", RUNS)
def test_every_sweep_has_runs(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = f"configs/sweeps/{name}.py"
    runs = sweep.runs_of(sweep.read_plan(path), path)
    assert len(runs) == RUNS[name]
    assert all(isinstance(run.config, Config) for run in runs)
    if name == "german_english":  # the dataset's name alone sets no direction
        languages = {
            (run.config.data.source_language, run.config.data.target_language) for run in runs
        }
        assert languages == {("de", "en")}
    if name == "table3":
        by_name = {run.name: run.config for run in runs}
        assert by_name["B_d_k_16-0"].model.d_k == 4
        assert by_name["C_8_layers-2"].model.num_decoder_layers == 4
        big, small = by_name["big-1"], by_name["base-1"]
        assert big.training.steps == 3 * small.training.steps
        assert (big.model.d_model, big.model.num_heads) == (256, 16)


def test_base_is_the_paper():
    config = base_experiment()
    model, adam, training = config.model, config.optimizer, config.training
    # Table 3, base.
    layers = model.num_encoder_layers, model.num_decoder_layers
    assert (*layers, model.d_model, model.d_ff, model.num_heads) == (6, 6, 512, 2048, 8)
    assert (model.dropout, training.label_smoothing, training.steps) == (0.1, 0.1, 100_000)
    assert (model.d_k or 512 // 8, model.d_v or 512 // 8) == (64, 64)
    # Sections 3.1 to 3.5.
    assert (model.norm, model.activation, model.positions) == ("post", "relu", "sinusoidal")
    assert model.share_embeddings == "all"
    assert (model.attention_dropout, model.activation_dropout) == (0, 0)
    # Sections 5.1 and 5.3.
    assert (config.tokenizer.model_type, config.tokenizer.vocab_size) == ("bpe", 37_000)
    assert config.tokenizer.joint
    assert training.tokens_per_update == 25_000
    assert (adam.beta1, adam.beta2, adam.epsilon) == (0.9, 0.98, 1e-9)
    assert (adam.name, adam.schedule, adam.warmup_steps) == ("adam", "noam", 4000)
    assert (adam.peak_learning_rate, adam.max_grad_norm) == (None, 0)
    # Section 6.1.
    decoding = config.decoding
    assert (decoding.beam_size, decoding.length_penalty) == (4, 0.6)
    assert (decoding.max_extra_length, training.keep_last) == (50, 5)


def test_big_is_the_paper():
    config = Config.from_dict(importlib.import_module("configs.big").get_config().to_dict())
    model, training = config.model, config.training
    assert (model.d_model, model.d_ff, model.num_heads, model.dropout) == (1024, 4096, 16, 0.3)
    assert (training.steps, training.keep_last) == (300_000, 20)


def test_base_holds_every_field_and_no_other():
    fields = {name: dataclasses.fields(x) for name, x in base_experiment().sections.items()}
    assert sorted(FIELDS) == sorted((name, f.name) for name in fields for f in fields[name])


def test_no_field_is_dead():
    """Code other than the checks of the configuration reads each field."""
    code = "".join(
        path.read_text() for path in [ROOT / "train.py", *(ROOT / "transformer").rglob("*.py")]
    )
    # The checks are what stands in __post_init__; so do not count it, nor comments and texts.
    code = re.sub(r"def __post_init__\(.*?(?=\n    def |\n\S)", "", code, flags=re.S)
    code = re.sub(r'""".*?"""', "", code, flags=re.S)
    code = re.sub(r"#.*", "", code)
    lines = code.splitlines()
    for section, field in FIELDS:
        # `DataSection.given(split)` reads the names of files, by the ends of the fields' names.
        by_name = re.fullmatch(r"(?:train|validation|test)_(file|source|target|split)", field)
        word = by_name[1] if by_name else field.removesuffix("_source").removesuffix("_target")
        found = "\n".join(line for line in lines if word in line)
        found = re.sub(rf'"[^"\n]*{section}\.{field}[^"\n]*"', "", found)
        pattern = rf"\b(?:config|{section})\.{field}\b|\bself\.{field} or "  # or: a default
        if re.match("(max|min)_.*length", field):  # DecodingConfig counts with them
            pattern += rf"|\bself\.{field}\b"
        pattern = rf'"(?:{{\w+}}_)?{by_name[1]}"' if by_name else pattern
        if field == "has_header":
            pattern = r"self\.has_header\)"
        assert re.search(pattern, found), f"nothing reads {section}.{field}"


# --- Checks -------------------------------------------------------------------------------


def test_a_config_and_its_dict():
    config = base_experiment(model_d_model=64)
    saved = json.loads(config.to_json())
    assert saved.pop("format") == FORMAT
    assert saved == base_dict(model_d_model=64)
    assert Config.from_dict(saved) == config
    assert with_fields(base_experiment(), {"model.d_model": 64, "model.d_ff": None}) == config
    assert config.sha256 == base_experiment(model_d_model=64).sha256
    assert config.sha256 != base_experiment().sha256
    assert base_experiment(model_dropout=0).model.dropout == 0  # an int will do for a float
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.d_model = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_train_text": "a"}, "config.data.train_text is called config.data.train_file now: "),
        (
            {"model_num_layer": 2},
            "Unknown config field config.model.num_layer; did you mean 'model.num_encoder_layers'?",
        ),
        ({"model_d_model": 64.0}, "config.model.d_model is 64.0; it must be of type int"),
        ({"model_d_model": "64"}, "config.model.d_model is '64'; it must be of type int"),
        ({"model_dropout": 10**400}, "config.model.dropout is 1000"),
        ({"model_d_model": True}, "config.model.d_model is True; it must be of type int"),
        ({"model_d_model": None}, "config.model.d_model is None; it must be of type int"),
        ({"model_dropout": "high"}, "config.model.dropout is 'high'; it must be of type float"),
        ({"tokenizer_joint": 1}, "config.tokenizer.joint is 1; it must be of type bool"),
        ({"data_raw_dir": 3}, "config.data.raw_dir is 3; it must be of type str | None"),
        ({"data_data_dir": None}, "config.data.data_dir is None; it must be of type str"),
        ({"training_seed": [1]}, r"config.training.seed is [1]; it must be of type int"),
        (
            {"training_init_from": "a", "tokenizer_source_model": "b"},
            "tokenizer.source_model and training.init_from are both given, and the latter has a "
            "tokenizer of its own; leave one of them out",
        ),
        (
            {
                "optimizer_schedule": "linear",
                "optimizer_peak_learning_rate": 1e-3,
                "optimizer_decay_steps": 99_999,
            },
            "training.steps is 100000, but the learning rate is 0 from update "
            "optimizer.decay_steps = 99999 on",
        ),
        ({"training_best_metric": "ter"}, "training.best_metric is 'ter', which the task seq2seq"),
        (
            {"training_full_validation_every": 0},
            "training.best_metric is 'bleu', but training.full_validation_every is 0 (never); set "
            "training.best_metric to 'nll'",
        ),
        ({"task_name": "parse"}, "task.name is 'parse'; it must be one of: seq2seq"),
        ({"model_family": "transfomer"}, "model.family is 'transfomer'; did you mean"),
    ],
)
def test_what_from_dict_refuses(changes, message):
    with pytest.raises(UserError) as error:
        base_experiment(**changes)
    assert str(error.value).startswith(message)


def test_sections_and_fields_must_be_there():
    config = base_dict()
    del config["optimizer"]["beta2"]
    with pytest.raises(
        UserError, match=r"config.optimizer.beta2 is missing; .* --help-config says"
    ):
        Config.from_dict(config)
    del config["optimizer"]
    with pytest.raises(UserError, match=r"config.optimizer is missing; .* --help-config says"):
        Config.from_dict(config)
    with pytest.raises(UserError, match="config section optimizer is 3; it must hold fields"):
        Config.from_dict(config | {"optimizer": 3})
    with pytest.raises(UserError, match=r"config.optimiser; did you mean 'optimizer'\?"):
        Config.from_dict(base_dict() | {"optimiser": {}})


def test_type_of_field():
    type_of_field("model.d_model")
    type_of_field("model")
    with pytest.raises(UserError, match=r"did you mean 'model.d_model'\?"):
        type_of_field("model.dmodel")
    with pytest.raises(UserError, match=r"did you mean 'training'\?"):
        type_of_field("trainning.steps")
    with pytest.raises(UserError, match=r"Unknown config field config.zzz; .* --help-config lists"):
        type_of_field("zzz")


def test_corpora_of_a_config(tmp_path, monkeypatch):
    corpora = {"bt": {"source": "a", "target": "b", "weight": 2, "tag": "<bt>"}}
    config = base_experiment(data_corpora=corpora)
    # 1. It is kept, with all fields, and its flags can be set again.
    save(tmp_path, config)
    assert load(tmp_path) == config
    unset = "file", "source_field", "target_field", "source_language", "target_language"
    whole = dict.fromkeys(unset) | corpora["bt"]
    assert json.loads((tmp_path / "config.json").read_text())["data"]["corpora"] == {"bt": whole}
    assert resume_config.get_config(str(tmp_path)).data.corpora.bt.to_dict() == whole
    names = {f"data.corpora.bt.{name}": value for name, value in whole.items()}
    assert names.items() <= flat(config).items()
    assert type_of_field("data.corpora.bt.weight") == (float | None)
    assert history.recorded_fields(config).items() >= {"data.corpora.bt.weight": 2}.items()

    # 2. What the run computes may not change; where files lie, may.
    moved = {"bt": {**whole, "source": "/c", "target": "/d"}}
    check_workdir(tmp_path, base_experiment(data_corpora=moved))
    for other, message in (
        ({"bt": {**whole, "weight": 1}}, r"\(data.corpora.bt.weight was 2, is 1\)"),
        ({}, r"\(data.corpora.bt.weight was 2, is None; data.corpora.bt.tag was '<bt>', is None\)"),
        ({"bt": whole, "x": {"file": "c", "weight": 3}}, r"\(data.corpora.x.weight was None, is 3"),
    ):
        with pytest.raises(UserError, match=message):
            check_workdir(tmp_path, base_experiment(data_corpora=other))

    # 3. A stranger's files are not read.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    files = {"data.corpora.bt.source": "a", "data.corpora.bt.target": "b"}
    assert trusted_paths.unknown(config, given=[]) == files
    trusted_paths.remember(config, named=["data.corpora.bt.source"])
    assert [*trusted_paths.unknown(config, given=[])] == ["data.corpora.bt.target"]


@pytest.mark.parametrize(
    ("corpora", "message"),
    [
        (3, r"config section data.corpora is 3; it must hold fields"),
        ({"a": "x.tsv"}, r"config section data.corpora.a is 'x.tsv'; it must hold fields"),
        ({"a": {"wieght": 2}}, r"Unknown config field config.data.corpora.a.wieght; did you mean "),
        (
            {"a": {"file": "b", "weight": "2"}},
            r"config.data.corpora.a.weight is '2'; it must ",
        ),
        ({"a": {"file": "az://b"}}, r"data.corpora.a.file is az://b, and only local files"),
        ({"a": {"weight": 2}}, r"data.corpora.a needs file, or source and target"),
    ],
)
def test_corpora_that_are_refused(corpora, message):
    with pytest.raises(UserError, match=message):
        base_experiment(data_corpora=corpora)


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
def test_corpora_by_flags(tmp_path, monkeypatch):
    file = tmp_path / "mixed.py"
    file.write_text(
        "from ml_collections import ConfigDict\nfrom configs import base\n"
        "def get_config():\n    config = base.get_config()\n"
        "    config.data.corpora = ConfigDict({'news': {'file': 'n.tsv', 'weight': 1.0}})\n"
        "    return config\n"
    )
    for config, flag, expected in (
        (file, "corpora.news.weight=3", {"news": {"file": "n.tsv", "weight": 3.0}}),
        (
            "configs/base.py",
            'corpora={"x": {"file": "a", "tag": "<x>"}}',
            {"x": {"file": "a", "tag": "<x>"}},
        ),
        (file, "corpora={}", {}),
    ):
        found, _ = config_of(["train", f"--config={config}", f"--config.data.{flag}"], monkeypatch)
        assert found == base_experiment(data_corpora=expected)


def test_extra_pairs_of_earlier_commits_are_a_corpus(tmp_path):
    config = json.loads(base_experiment().to_json())
    del config["data"]["corpora"]
    for extra, corpora in (
        ({"extra_source": None, "extra_target": None}, {}),
        (
            {"extra_source": "a", "extra_target": "b"},
            {"extra": {"source": "a", "target": "b"}},
        ),
    ):
        content = {**config, "data": {**config["data"], **extra}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert load(tmp_path) == base_experiment(data_corpora=corpora)
    with pytest.raises(UserError, match=r"config.data.extra_source is called config.data.cor"):
        base_experiment(data_extra_source="a")


def test_an_unknown_field_is_answered_in_short():
    """Not with the names of all families, but with where those of this one are."""
    choice = ["--config=configs/lm.py", "--config.model.family=rnn"]
    with pytest.raises(UserError) as error:
        type_of_field("model.qqq", choice)
    assert str(error.value).endswith(" ".join([*choice, "--help-config lists the fields"]))
    assert len(str(error.value)) < 250
    with pytest.raises(
        UserError, match=r"config.model.cell, of another .* give a config file that"
    ):
        base_experiment(model_cell="lstm")


# --- Work directories ---------------------------------------------------------------------


def test_saved_is_loaded(tmp_path):
    config = base_experiment(data_train_source="a b/ä.txt", data_train_target='"')
    save(tmp_path / "new" / "run", config)
    assert load(tmp_path / "new" / "run") == config
    assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == ["config.json"]
    saved = json.loads((tmp_path / "new" / "run" / "config.json").read_text())
    assert saved == json.loads(config.to_json())


@pytest.mark.parametrize(
    ("preset", "earlier", "now"),
    [
        (lm, {"train_text": "a", "test_text": None}, {"train_file": "a"}),
        (
            classification,
            {"text_column": "0", "second_column": "2", "label_column": "1"},
            {"text_field": "1", "second_field": "3", "label_field": "2"},
        ),
        (
            classification,
            {"has_header": True, "text_column": "0", "second_column": None, "label_column": "x"},
            {"has_header": True, "text_field": "0", "label_field": "x"},
        ),
    ],
)
def test_runs_of_earlier_commits_have_fields_of_other_names(preset, earlier, now, tmp_path):
    fields = preset.get_config().to_dict()
    data = {name: x for name, x in fields["data"].items() if not name.endswith(("_field", "_file"))}
    if preset is lm:
        del data["has_header"]  # is newer
    expected = Config.from_dict(fields | {"data": fields["data"] | now})
    old = {"format": FORMAT, **fields, "data": data | earlier}
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert load(tmp_path) == expected
    # So have the records of how they began, and of what they began with.
    record = {f"data.{name}": value for name, value in earlier.items()}
    run = {"overrides": record, "init_from": {"config": record}}
    renew(run, "config", "overrides")
    assert {f"data.{name}": value for name, value in now.items()}.items() <= run[
        "overrides"
    ].items()
    assert run["init_from"]["config"] == run["overrides"]


@pytest.mark.parametrize(("format_of_old", "shown"), [(None, 1), (FORMAT + 1, FORMAT + 1)])
def test_a_work_directory_of_another_format(format_of_old, shown, tmp_path):
    config = json.loads(base_experiment().to_json()) | {"format": format_of_old}
    if format_of_old is None:
        del config["format"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = f"has format {shown}, and this commit reads format {FORMAT} alone"
    with pytest.raises(UserError, match=message):
        load(tmp_path)
    with pytest.raises(UserError, match=message):
        check_workdir(tmp_path, base_experiment())


def test_what_killed_processes_leave_is_removed(tmp_path):
    process = subprocess.Popen(["true"])
    process.wait()
    name = temporary_beside(tmp_path / "config.json").name.replace(
        f".{os.getpid()}.", f".{process.pid}."
    )
    (tmp_path / name).write_text("{")
    (tmp_path / "lock").touch()
    check_workdir(tmp_path, base_experiment())
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / name).write_text("{")
    save(tmp_path, base_experiment())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "eval", "lock"]


def test_a_new_or_empty_directory_will_do(tmp_path):
    check_workdir(tmp_path, base_experiment())
    check_workdir(tmp_path / "new", base_experiment())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("data_train_split", "train[:10%]", "train"),
        ("tokenizer_sample_size", 997, 1_000_000),
        ("model_dropout", 0.3, 0.1),
        ("optimizer_warmup_steps", 997, 4000),
        ("training_tokens_per_update", 997, 25_000),
        ("training_seed", 3, 0),
    ],
)
def test_what_gives_the_steps_their_meaning_may_not_change(field, old, new, tmp_path):
    save(tmp_path, base_experiment(**{field: old}))
    message = f"{field.replace('_', '.', 1)} was {old!r}, is {new!r}"
    with pytest.raises(UserError, match=re.escape(message)):
        check_workdir(tmp_path, base_experiment())


def test_all_differences_are_named(tmp_path):
    save(tmp_path, base_experiment(model_d_model=64, training_seed=3))
    check_workdir(tmp_path, base_experiment(model_d_model=64, training_seed=3, training_steps=7))
    message = r"\(model.d_model was 64, is 512; training.seed was 3, is 0\)"
    with pytest.raises(UserError, match=message):
        check_workdir(tmp_path, base_experiment(training_steps=7))


def test_other_directories_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        check_workdir(tmp_path, base_experiment())
    with pytest.raises(UserError, match="give another --workdir"):
        check_workdir(tmp_path / "thesis.txt", base_experiment())


def test_no_work_directory(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    for name in ("run", "nowhere", "file"):
        with pytest.raises(UserError, match=f"{name} is not a work directory"):
            load(tmp_path / name)


def test_damaged_configs_are_refused_in_one_line(tmp_path):
    save(tmp_path, base_experiment())
    path, used = tmp_path / "config.json", []
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: x for name, x in config.items() if name != "mesh"}))
    with pytest.raises(UserError, match=r"config\.json: config\.mesh is missing"):
        load(tmp_path)
    for altered in damaged(config, 300):
        path.write_bytes(altered)
        used.append(assert_used_or_refused(lambda: load(tmp_path), "/", altered))
    assert 5 < sum(used) < 295
