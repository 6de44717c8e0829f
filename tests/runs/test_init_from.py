"""What a run takes from the one that it begins with; how, tests/test_resume.py shows."""

import dataclasses
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from small_bert import CLASSIFICATION
from test_image_generation import MODEL as SAGAN

from configs import demo, demo_rnn
from transformer.models.family import Sizes, build_model, find_family
from transformer.runs import run_config
from transformer.runs.init_from import with_heads, with_its_model
from transformer.runs.restore import Chosen, TrainedModel
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.sharding import name_of

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


def test_a_folder_of_neither_kind_says_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 128}')
    assert with_its_model(to_begin(BASE, tmp_path), tmp_path / "new", []).model == BASE.model


# --- Classes by name ----------------------------------------------------------------------

BERT = dataclasses.replace(
    CLASSIFICATION.model, num_layers=1, d_model=14, d_ff=11, num_heads=2, max_positions=13
)
MODELS = {"bert": BERT, "sagan": SAGAN}


def task_of(model_config, classes):
    count = len(classes or ["number"])
    model = build_model(model_config, Sizes(7, count, False, 13, 13))
    return types.SimpleNamespace(model=model, classes=classes)


def begun(model_config, old, new):
    """The model of a run with the classes `new` that begins with one of `old`."""
    arrays, chosen = (params_of(old), extra_of(old)), Chosen("best", [3], 3, False)
    origin = TrainedModel(Path("old"), CLASSIFICATION, old, chosen, *arrays)
    config = dataclasses.replace(CLASSIFICATION, model=model_config)
    return with_heads(origin, new, config)


def counted(shapes):
    """Another number everywhere."""
    leaves, structure = jax.tree.flatten(shapes)
    starts = np.cumsum([0, *(x.size for x in leaves)])
    arrays = [start + np.arange(x.size).reshape(x.shape) for start, x in zip(starts, leaves)]
    return jax.tree.unflatten(structure, arrays)


def params_of(task):
    return counted(task.model.abstract_params())


def extra_of(task):
    return counted(task.model.abstract_extra())


@pytest.mark.parametrize("family", MODELS)
def test_families_name_the_axes_that_grow_with_the_classes(family):
    def shapes(count):
        model = task_of(MODELS[family], [str(i) for i in range(count)]).model
        both = model.abstract_params(), model.abstract_extra()
        leaves = jax.tree_util.tree_leaves_with_path(both)
        return [(name_of(path), x.shape) for path, x in leaves]

    grown = {
        (name, axis)
        for (name, three), (_, five) in zip(shapes(3), shapes(5), strict=True)
        for axis in range(len(three))
        if three[axis] != five[axis]
    }
    declared = find_family(family).class_axes
    assert grown == {
        (name, axis)
        for name, _ in shapes(3)
        for pattern, axis in declared
        if re.fullmatch(pattern, name)
    }


PLACES = {  # some of the arrays, and the axis of the classes
    "bert": {(0, "classifier", "kernel"): 1, (0, "classifier", "bias"): 0},
    "sagan": {
        (0, "generator", "blocks", 0, "norm1", "scale_NC"): 0,
        (0, "discriminator", "classes", "kernel"): 0,
        (1, "average", "blocks", 2, "norm2", "shift_NC"): 0,
    },
}


@pytest.mark.parametrize("family", ["bert", pytest.param("sagan", marks=pytest.mark.slow)])
def test_entries_of_classes_go_by_name(family, capsys):
    """By position, `negative` would get the entry of another class, or of none."""
    old = task_of(MODELS[family], ["negative", "positive", "x"])
    before = params_of(old), extra_of(old)
    made = begun(MODELS[family], old, task_of(MODELS[family], ["good", "negative"]))
    other = begun(MODELS[family], old, task_of(MODELS[family], ["a", "b"]))
    for path, axis in PLACES[family].items():

        def entries(tree, path=path, axis=axis):
            for key in path:
                tree = tree[key]
            return np.moveaxis(np.asarray(tree), axis, 0)

        found, fresh = (entries((x.params, x.extra)) for x in (made, other))
        np.testing.assert_array_equal(found[1], entries(before)[0])
        np.testing.assert_array_equal(found[0], fresh[0])
    assert capsys.readouterr().out.splitlines() == [
        "initial  classes taken over: negative; with fresh values: good; left out: positive, x",
        "initial  classes with fresh values: a, b; left out: negative, positive, x",
    ]
    # The rest is the old model's.
    part, own = {"bert": ("encoder_layers", 0), "sagan": ("discriminator", "blocks")}[family]
    jax.tree.map(np.testing.assert_array_equal, made.params[part][own], before[0][part][own])


def test_the_same_classes_are_said_and_numbers_are_not(capsys):
    for classes in (["a", "b"], None):
        old, new = (task_of(BERT, classes) for _ in range(2))
        made = begun(BERT, old, new)
        jax.tree.map(np.testing.assert_array_equal, made.params, params_of(old))
    assert capsys.readouterr().out == "initial  classes taken over: a, b\n"


def test_another_head_and_numbers_begin_with_fresh_values(capsys):
    """A classifier after masked words; numbers after classes. Both are said."""
    masked = task_of(dataclasses.replace(BERT, head="masked_lm"), None)
    with_pairs = dataclasses.replace(BERT, head="pre_training")
    new = task_of(BERT, ["a", "b"])
    begun(BERT, masked, new)
    assert capsys.readouterr().out == "initial  with fresh values: classifier, pooler\n"
    assert "masked_lm" not in begun(BERT, task_of(with_pairs, None), new).params
    assert capsys.readouterr().out == "initial  with fresh values: classifier\n"
    made = begun(BERT, new, task_of(BERT, None))
    assert made.params["classifier"]["kernel"].shape == (14, 1)
    assert np.abs(made.params["classifier"]["kernel"]).max() < 1  # `params_of` has none so small
    assert capsys.readouterr().out == "initial  classes left out: a, b\n"


def test_other_sizes_are_refused():
    old, new = (task_of(dataclasses.replace(BERT, d_ff=n), ["a", "b"]) for n in (13, 11))
    with pytest.raises(UserError, match=r"^training\.init_from: encoder_layers of old has another"):
        begun(BERT, old, new)
