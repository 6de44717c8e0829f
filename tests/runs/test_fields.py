"""What the config files say of each field."""

import dataclasses
import itertools
import re
import runpy

import pytest
from scripts import run, succeeded

from configs import demo
from transformer import configs
from transformer.models.family import FAMILIES
from transformer.runs import fields
from transformer.runs.provenance import ROOT
from transformer.runs.run_config import Config, section_types
from transformer.tasks.task import TASKS

# Every family and every task is in one of these.
CONFIGS = "base rnn_bahdanau convs2s_iwslt universal_base bert_base classification algorithmic"


def config_of(name: str) -> Config:
    values = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]()
    return Config.from_dict(values.to_dict())


@pytest.mark.parametrize("name", CONFIGS.split())
def test_every_field_is_explained(name):
    config = config_of(name)
    found = fields.fields(config.sections)
    assert not [field.name for field in found if not field.comment]
    names = [f"{s}.{f.name}" for s, x in config.sections.items() for f in dataclasses.fields(x)]
    assert sorted(field.name for field in found) == sorted(names)


def test_comments_above_and_beside(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/base.py").write_text(
        "    config.model = ConfigDict()  # of the section\n"
        "    # Of two\n"
        "    # lines.\n"
        "    config.model.a = 1\n"
        "    config.model.b = placeholder(int)\n"
        "    config.model.c = 3  # its own\n"
        "    config.model.d = 4\n"
        "\n"
        "    config.model.e = 5\n"
        "    # of f alone...\n"
        "    config.model.f = 6  # and more.\n"
    )
    (tmp_path / "configs/other.py").write_text(
        "        model.g = 7  # of g\n        model.a = 2\n    model.c = 4  # another\n"
    )
    monkeypatch.setattr(configs, "FOLDER", tmp_path / "configs")
    base = {"model.a": "Of two lines", "model.b": "Of two lines", "model.c": "Its own"}
    base |= {"model.d": "Of two lines", "model.f": "Of f alone... and more"}
    assert fields.comments("configs/base.py") == base
    other = {"model.g": "Of g", "model.c": "Another"}
    assert fields.comments("configs/other.py") == base | other


def test_a_value_is_not_capitalised():
    said = fields.comments("configs/base.py") | fields.comments("configs/rnn_bahdanau.py")
    values = {"model.norm": "post", "optimizer.schedule": "noam", "model.cell": "gated_unit"}
    assert {name: re.match(r"\w+", said[name])[0] for name in values} == values


@pytest.mark.parametrize(
    ("task", "family"),
    [*itertools.product(TASKS, ["transformer"]), *itertools.product(["seq2seq"], FAMILIES)],
)
def test_the_fields_of_another_task_or_family(task, family):
    """Such as --config.model.family=rnn with the config of the demo."""
    given = demo.get_config().to_dict()
    given["task"]["name"], given["model"]["family"] = task, family
    asked = {"task.name": task, "model.family": family, "training.seed": 7}
    types = section_types(task, family)
    if has_dropout := "dropout" in {field.name for field in dataclasses.fields(types["model"])}:
        given["model"]["dropout"] = asked["model.dropout"] = 0.375
    found = fields.sections_of(given, asked)
    assert {name: type(section) for name, section in found.items()} == types
    assert (found["task"].name, found["model"].family) == (task, family)
    assert f"  --config.model.family={family}" in fields.listing(found)
    if has_dropout:
        assert found["model"].dropout == 0.375


def test_the_listing():
    config = Config.from_dict(demo.get_config().to_dict())
    lines = fields.listing(config.sections).splitlines()
    i = lines.index("  --config.model.d_model=128   (configs/base.py: 512)")
    assert lines[i + 1] == "      The size of embeddings and of each layer's output"
    assert "  --config.model.d_k=0" in lines
    assert "  --config.data.raw_dir=" in lines
    assert max(map(len, lines)) <= 100


def test_train_py_lists_fields(tmp_path):
    said = succeeded(run("train.py", "--help-config", "--config.model.d_ff=77", cwd=tmp_path)).out
    assert b"  --config.model.d_ff=77   (configs/base.py: 2048)\n" in said
    assert not list(tmp_path.iterdir())
