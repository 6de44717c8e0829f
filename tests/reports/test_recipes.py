import importlib
import re

import pytest
from test_run_config import base_experiment

from transformer.metrics.scores import corpus_scores
from transformer.reports.recipes import (
    DERIVED,
    EFFECTS,
    IRRELEVANT,
    RECIPES,
    Difference,
    compare,
    explain,
    find_recipe,
    shown,
)
from transformer.runs.run_config import Config, flat
from transformer.system.errors import UserError


def of_config(name: str) -> Config:
    module = importlib.import_module(f"configs.{name}")
    return Config.from_dict(module.get_config().to_dict())


def evaluation_of(experiment, averaged=5, last_step=None, **changes) -> dict:
    """What scores.json says of a run that came to its end and was tested with its config."""
    last = experiment.training.steps if last_step is None else last_step
    every = experiment.training.checkpoint_every
    return {
        "split": "test",
        "checkpoint_steps": [last - every * i for i in reversed(range(averaged))],
        "beam_size": experiment.decoding.beam_size,
        "length_penalty": {"name": "gnmt", "alpha": experiment.decoding.length_penalty},
        "max_extra_length": experiment.decoding.max_extra_length,
        **changes,
    }


def values(differences: list[Difference]) -> list[tuple[str, str, str]]:
    return [(d.what, d.run, d.recipe) for d in differences]


def explained(experiment: Config, recipe: str = "base", **changes):
    evaluation = evaluation_of(experiment, **changes)
    return values(explain(experiment, recipe, evaluation=evaluation))


# --- The recipes --------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_of_the_recipe_itself_differs_in_nothing(recipe):
    """Nor do changes of its recipe hold a wrong name or type: they are a Config, too."""
    for averaged in find_recipe(recipe).averaged:
        assert explained(find_recipe(recipe).resolved(), recipe, averaged=averaged) == []
    # Scores to compare are in scores.json.
    there_are = corpus_scores(["ein Haus"], ["ein Haus"], target_language="de")
    named = re.findall(r"\bbleu\w*", find_recipe(recipe).comparable)
    assert named
    assert set(named) <= set(there_are)


def test_base_beside_big_and_tensor2tensor():
    """The rows of Table 3, their peaks of Equation 3, and T2T's preset of big."""
    assert explained(base_experiment(), "big") == [
        ("averaged_checkpoints, training.checkpoint_every", "5, 1500", "20, 600"),
        ("training.steps, tokens_seen", "100000, 2,500.0 M", "300000, 7,500.0 M"),
        ("peak_learning_rate", "6.99e-04", "4.94e-04"),
        ("model.d_model", "512", "1024"),
        ("model.d_ff", "2048", "4096"),
        ("model.num_heads", "8", "16"),  # of 64 in both
        ("model.dropout", "0.1", "0.3"),
    ]
    big = explained(of_config("big"), "t2t_big")
    assert ("training.tokens_per_update", "25000", "16384") in big
    assert ("tokens_seen", "7,500.0 M", "4,915.2 M") in big  # as many steps


def test_what_is_not_compared():
    message = "no recipe 'bigger'.*: base, big, t2t_base, t2t_big, multi30k_tiny$"
    with pytest.raises(UserError, match=message):
        explained(base_experiment(), "bigger")
    message = r"model\.family is 'rnn' in the run and 'transformer' in the"
    with pytest.raises(UserError, match=message):
        explained(of_config("demo_rnn"))


# --- The differences ----------------------------------------------------------------------

FILES = {
    f"data_{split}_{side}": f"{split}.{name}"
    for split in ("train", "validation", "test")
    for side, name in (("source", "en"), ("target", "de"))
}
TRAINED_ON = (
    "data.dataset, data.train_split, data.train_source, data.train_target",
    "None, None, train.en, train.de",
    "hf:wmt/wmt14:de-en, train, None, None",
)
TESTED_ON = "data.test_split, data.test_source, data.test_target"


@pytest.mark.parametrize(
    ("fields", "evaluation", "expected"),
    [
        # The steps of the checkpoint count, and not those of the config.
        (
            {},
            {"last_step": 40_000},
            [("training.steps, tokens_seen", "40000, 1,000.0 M", "100000, 2,500.0 M")],
        ),
        (  # before the end of its warm-up a run has not had its peak
            {},
            {"averaged": 5, "last_step": 1000},
            [
                ("training.steps, tokens_seen", "1000, 25.0 M", "100000, 2,500.0 M"),
                ("peak_learning_rate", "1.75e-04", "6.99e-04"),
            ],
        ),
        (  # as many tokens in other batches
            {"training_steps": 200_000, "training_tokens_per_update": 12_500},
            {},
            [
                ("training.steps", "200000", "100000"),
                ("training.tokens_per_update", "12500", "25000"),
            ],
        ),
        (  # the search is that of the evaluation
            {},
            {
                "beam_size": 1,
                "length_penalty": {"name": "length_power", "alpha": 0.5},
                "max_extra_length": 31,
            },
            [
                ("decoding.beam_size", "1", "4"),
                (
                    "decoding.length_penalty, length_penalty_formula",
                    "0.5, length_power",
                    "0.6, gnmt",
                ),
                ("decoding.max_extra_length", "31", "50"),
            ],
        ),
        (
            {"training_checkpoint_every": 300},
            {},
            [("training.checkpoint_every", "300", "1500")],
        ),
        (
            {"training_checkpoint_every": 300},
            {"averaged": 1},
            [("averaged_checkpoints", "1", "5")],
        ),
        ({}, {"split": "validation"}, [("data.test_split", "validation", "test")]),
        # Text files are other data.
        (FILES, {}, [(TESTED_ON, "None, test.en, test.de", "test, None, None"), TRAINED_ON]),
        (
            FILES,
            {"split": "validation"},
            [(TESTED_ON, "None, validation.en, validation.de", "test, None, None"), TRAINED_ON],
        ),
        # What is written but not used does not differ.
        ({"model_d_k": 64, "model_max_positions": 128}, {}, []),
        (
            {"model_positions": "learned", "model_max_positions": 128},
            {},
            [("model.positions, model.max_positions", "learned, 128", "sinusoidal, None")],
        ),
        (  # half the heads are heads of twice the size
            {"model_num_heads": 4},
            {},
            [("model.num_heads, model.d_k, model.d_v", "4, 128, 128", "8, 64, 64")],
        ),
    ],
)
def test_differences(fields, evaluation, expected):
    assert explained(base_experiment(**fields), **evaluation) == expected


def test_a_recipe_with_several_averages_and_another_test_set():
    tiny = of_config("multi30k_tiny")
    other = ("data.test_split", "test_2017_flickr", "test_2016_flickr")
    for averaged, split, expected in (
        (3, "test", [("averaged_checkpoints", "3", "10 or 1")]),
        (10, "test_2016_flickr", []),
        (10, "test_2017_flickr", [other]),
    ):
        assert explained(tiny, "multi30k_tiny", averaged=averaged, split=split) == expected


def test_changes_are_listed_in_the_order_of_importance():
    run = base_experiment(
        decoding_length_penalty=1.0,
        decoding_beam_size=7,
        model_dtype="bfloat16",
        model_num_decoder_layers=3,
        training_label_smoothing=0.0,
        training_seed=11,
        data_max_source_length=101,
        # None of these matters.
        data_data_dir="elsewhere",
        training_log_every=13,
        training_max_tokens_per_device=997,
        training_patience=17,
        mesh_fsdp=2,
    )
    differences = explain(run, "base", evaluation=evaluation_of(run, averaged=3))
    assert values(differences) == [
        ("averaged_checkpoints", "3", "5"),
        ("data.max_source_length", "101", "256"),
        ("training.label_smoothing", "0.0", "0.1"),
        ("training.seed", "11", "0"),
        ("model.num_decoder_layers", "3", "6"),
        ("model.dtype", "bfloat16", "float32"),
        ("decoding.beam_size", "7", "4"),
        ("decoding.length_penalty", "1.0", "0.6"),
    ]
    smoothing = differences[2]
    assert smoothing.effect == "0.0: 25.3 (4.67), 0.1: 25.8 (4.92), 0.2: 25.7 (5.47)"
    assert smoothing.source == "Table 3, base and row D"


def test_facts_without_an_entry_or_that_a_recipe_does_not_state():
    run = {name: 1 for row in EFFECTS for name in row.facts} | {"model.new_option": 1}
    stated = {"model.norm": 2, "optimizer.beta1": 1, "training.seed": 3, "model.new_option": 2}
    found = compare(run, stated)
    new = ("model.new_option", "1", "2")
    assert values(found) == [("training.seed", "1", "3"), ("model.norm", "1", "2"), new]
    assert found[-1].effect == "not known"


# --- The table ----------------------------------------------------------------------------


def test_the_table_names_each_field_once_and_no_removed_one():
    known = [name for row in EFFECTS for name in row.facts] + IRRELEVANT
    assert len(known) == len(set(known))
    assert set(known) <= {*flat(base_experiment()), *DERIVED}


def test_every_effect_has_a_figure_or_is_unknown_and_has_a_source():
    for row in EFFECTS:
        assert re.search(r"\d\.\d|not known to us in isolation|none seen", row.effect), row
        assert "memory" not in row.effect + row.source
        # A section or table of the paper, an issue, a file of a repository, or a publication.
        source = r"(Section|Table)s? \d|issues? #\d|\w\.(py|md)\b|\b20\d\d\)?,"
        assert re.search(source, row.source), row


# --- The text -----------------------------------------------------------------------------


def test_shown():
    run = base_experiment(model_norm="pre")
    text = shown(explain(run, "base", evaluation=evaluation_of(run, averaged=1)), "base")
    head, metric, announced, *blocks = text.split("\n\n")
    assert head == (
        "Recipe base: 27.3 BLEU, tokenised, compounds split, cased, on newstest2014 "
        "(paper, Table 2)"
    )
    assert metric.startswith("Metric, of those in scores.json: bleu_tokenized_compound_split is of")
    assert announced == "Differences of this run, the most important first:"
    assert blocks[0].startswith(
        " 1. averaged_checkpoints\n    run     1\n    recipe  5\n    effect  averaging adds"
    )
    assert blocks[1] == (
        " 2. model.norm\n"
        "    run     pre\n"
        "    recipe  post\n"
        "    effect  IWSLT14 German-English: post 35.64 ±0.23, pre 35.50 ±0.04\n"
        "    source  LiyuanLucasLiu/Transformer-Clinic issue #12"
    )
    assert blocks[2].startswith("Sections and tables are the paper's")
    assert blocks[-1].startswith("Outside of configs: ")


def test_shown_without_differences():
    head, _, message, *rest = shown([], "big").split("\n\n")
    assert head.startswith("Recipe big: 28.4 BLEU")
    assert message == "This run differs in nothing that is known to matter, but for the seed."
    assert len(rest) == 1


def test_lines_fit_the_terminal():
    sides = ("source", "target")
    run = base_experiment(
        **{f"data_train_{side}": f"/{'folder/' * 30}{side}" for side in sides},
        **{f"tokenizer_{side}_model": f"/{'folder/' * 30}{side}" for side in sides},
        tokenizer_joint=False,
        model_share_embeddings="none",
    )
    # And rows that this run does not have.
    rows = [Difference(", ".join(row.facts), "1", "2", row.effect, row.source) for row in EFFECTS]
    for recipe in RECIPES:
        found = explain(run, recipe, evaluation=evaluation_of(run, averaged=2))
        for differences in (found, rows):
            assert max(map(len, shown(differences, recipe).splitlines())) <= 100
