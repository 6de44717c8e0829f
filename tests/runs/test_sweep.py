"""The runs of a sweep, and their names."""

from pathlib import Path

import pytest

from transformer.runs.run_config import Config
from transformer.runs.sweep import Plan, plan_of, read_plan, runs_of, sections_of
from transformer.system.errors import UserError

CONFIG = str(Path(__file__).parents[2] / "configs/base.py")
D_FF = {"model.d_ff": 9}
BASE = f"--config={CONFIG}"


def runs(**plan):
    return runs_of(plan_of(plan, "s.py"), CONFIG)


def test_a_plain_config_with_seeds():
    found = runs(seeds=[3, 1])
    assert [run.name for run in found] == ["base-3", "base-1"]
    assert found[0].flags() == [BASE, "--config.training.seed=3"]
    assert found[0].config.training.seed == 3


def test_a_grid_has_every_combination():
    found = runs(grid={"model.num_heads": [4, 8], "model.dropout": [0.0, 0.3]}, rows=[{}, D_FF])
    assert len(found) == 8
    assert found[0].name == "num_heads=4_dropout=0.0-0"
    assert found[-1].name == "d_ff=9_num_heads=8_dropout=0.3-0"
    model = found[-1].config.model
    assert (model.num_heads, model.dropout, model.d_ff) == (8, 0.3, 9)


def test_rows_may_have_names_and_differ_in_fields():
    rows = [{"name": "base"}, {"name": "A", "model.num_heads": 4}, {"model.dropout": 0.2}]
    found = runs(rows=rows, seeds=[0])
    assert [run.name for run in found] == ["base-0", "A-0", "dropout=0.2-0"]
    assert found[1].config.model.num_heads == 4
    assert found[2].config.model.num_heads == 8


def test_fields_of_one_name_keep_their_sections():
    (run,) = runs(rows=[{"optimizer.name": "sgd", "task.name": "seq2seq", "optimizer.epsilon": 1}])
    assert run.row == "optimizer.name=sgd_task.name=seq2seq_epsilon=1"


def test_flags_of_the_row_come_after_those_of_all_runs():
    (run,) = runs(rows=[{"name": 3, "model.d_ff": 7, "optimizer.decay_steps": None}])
    assert run.name == "3-0"
    own = ["--config.training.seed=0", "--config.model.d_ff=7"]
    own.append("--config.optimizer.decay_steps=None")
    assert run.flags(["--more"]) == [BASE, "--more", *own]


def test_a_combination_that_cannot_be_is_told_by_its_run():
    good, bad, none = runs(grid={"model.num_heads": [4, 3, None]})
    assert isinstance(good.config, Config)
    assert isinstance(bad.config, UserError)
    assert "d_model = 512 is not divisible" in str(bad.config)
    assert "model.num_heads is None; it must be of type int" in str(none.config)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"sede": [0]}, "s.py: get_sweep gives an unknown field 'sede'; did you mean 'seeds'"),
        (
            {"rows": [{"model.num_head": 4}]},
            "model.num_head; did you mean 'model.num_heads'",
        ),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "two runs have the name a-0"),
        ({"grid": {"model.d_ff": [7, 7]}}, "two runs have the name d_ff=7-0"),
        ({"seeds": [1, 1]}, "two runs have the name base-1"),
        ({"seeds": []}, "the sweep has no run"),
        ({"seeds": "12"}, "seeds is '12'"),
        ({"seeds": range(10**9)}, "s.py: the sweep has 1,000,000,000 runs; it may have 10,000"),
        ({"seeds": range(10**30)}, "s.py: the sweep has an endless list"),
        ({"grid": {"model.d_ff": range(10**6), "model.d_k": range(10**6)}}, "1,000,000,000,000"),
        ({"rows": [{}, {}], "grid": {"model.d_ff": range(5001)}}, "10,002 runs"),
        ({"rows": {"model.d_ff": 3}}, "rows is .* must be a list of dicts"),
        ({"grid": {"model.d_ff": 3}}, "grid must be a dict from fields to lists"),
        (
            {"rows": [{"model.d_ff": 3}], "grid": {"model.d_ff": [4]}},
            "a row and the grid set model.d_ff",
        ),
        ({"grid": {"training.seed": [4]}}, "give the seeds of all rows as `seeds`"),
        ({"rows": [{"name": "a/b"}]}, "cannot name a folder"),
        ({"rows": [{"model.cell": "gru"}]}, "the sweep sets model.cell, which .*base.py does not"),
        ({"evaluate": 3}, "evaluate is 3"),
        ({3: []}, "s.py: get_sweep gives an unknown field 3; choose one of rows, grid"),
        ({"rows": [{3: 4}]}, "s.py: 3 is no name of a field; give one such as 'model.d_ff'"),
        ({"grid": {None: [4], "model.d_ff": [4]}}, "s.py: None is no name of a field"),
        ({"rows": [{"config": 3}]}, "the sweep sets config to 3; give the name of a file"),
        ({"grid": {"config": [3]}}, "the sweep sets config to 3; give the name of a file"),
        ({"rows": [{"name": 199 * "n"}]}, "n{60}... has 201 bytes, more than 200; give its row"),
    ],
)
def test_refused(plan, message):
    with pytest.raises(UserError, match=message):
        runs_of(plan_of(plan, "s.py"), CONFIG)


def test_files(tmp_path):
    path = tmp_path / "sweep.py"
    path.write_text(
        "from configs.demo import get_config\ndef get_sweep():\n    return {'seeds': [7]}"
    )
    assert read_plan(str(path)) == Plan(seeds=[7])
    assert sections_of(str(path), {"model.d_ff": 5})["model"]["d_ff"] == 5
    path.write_text("from configs.demo import get_config")
    assert read_plan(str(path)) == Plan()
    path.write_text("def get_sweep():\n    return 3")
    with pytest.raises(UserError, match="get_sweep gives 3; it must give a dict"):
        read_plan(str(path))
    path.write_text("def get_sweep():\n    return {}['a']\ndef get_config():\n    return {}['b']")
    with pytest.raises(UserError, match="cannot be used: KeyError: 'a'"):
        read_plan(str(path))
    with pytest.raises(UserError, match="cannot be used: KeyError: 'b'"):
        sections_of(str(path), {})
    path.write_text("1 / 0")
    with pytest.raises(UserError, match="cannot be used: ZeroDivisionError"):
        read_plan(str(path))
    with pytest.raises(UserError, match="there is no config file"):
        sections_of("nowhere.py", {})
