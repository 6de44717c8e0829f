"""What a run takes from the one that it begins with; how, tests/test_resume.py shows."""

import dataclasses

from configs import demo, demo_rnn
from transformer.runs import run_config
from transformer.runs.init_from import with_its_model
from transformer.runs.run_config import Config

ORIGIN = Config.from_dict(demo.get_config().to_dict())
BASE = run_config.with_fields(ORIGIN, {"model.d_ff": 77, "tokenizer.vocab_size": 500})


def to_begin(config, workdir):
    return run_config.with_fields(config, {"training.init_from": str(workdir)})


def test_model_and_tokenizer_are_taken_over(tmp_path, capsys):
    run_config.save(tmp_path / "origin", ORIGIN)
    config = to_begin(BASE, tmp_path / "origin")
    config = run_config.with_fields(config, {"model.dropout": 0.3, "optimizer.warmup_steps": 3})
    found = with_its_model(config, tmp_path / "new", ["optimizer.warmup_steps"])
    assert found.model == dataclasses.replace(ORIGIN.model, dropout=0.3)
    assert found.tokenizer == ORIGIN.tokenizer
    assert found.optimizer.warmup_steps == 3
    assert "model.d_ff=512" in capsys.readouterr().out
    # What a flag sets stays, for `load` to refuse.
    assert with_its_model(config, tmp_path / "new", ["model.d_ff"]).model.d_ff == 77


def test_another_family_is_taken_over(tmp_path):
    run_config.save(tmp_path / "origin", Config.from_dict(demo_rnn.get_config().to_dict()))
    found = with_its_model(to_begin(BASE, tmp_path / "origin"), tmp_path / "new", [])
    assert found.model == run_config.load(tmp_path / "origin").model


def test_a_run_that_has_begun_needs_the_other_no_more(tmp_path):
    gone = to_begin(BASE, tmp_path / "gone")
    assert with_its_model(gone, tmp_path / "new", []) == gone
    run_config.save(tmp_path / "new", to_begin(ORIGIN, tmp_path / "gone"))
    assert with_its_model(gone, tmp_path / "new", []).model == ORIGIN.model


def test_a_folder_of_the_hub_says_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 128}')
    assert with_its_model(to_begin(BASE, tmp_path), tmp_path / "new", []).model == BASE.model
