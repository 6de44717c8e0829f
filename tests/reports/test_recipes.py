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


def of_recipe(name: str) -> Config:
    """An experiment with exactly the fields of a recipe."""
    return find_recipe(name).resolved()


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


@pytest.mark.parametrize(
    ("recipe", "averaged"),
    [
        ("base", 5),
        ("big", 20),
        ("t2t_base", 1),
        ("t2t_base", 7),
        ("t2t_big", 1),
        ("multi30k_tiny", 10),
        ("multi30k_tiny", 1),
    ],
)
def test_a_run_of_the_recipe_itself_differs_in_nothing(recipe, averaged):
    """Nor do changes of its recipe hold a wrong name or type: they are an Config, too."""
    assert explained(of_recipe(recipe), recipe, averaged=averaged) == []


def test_the_presets_of_tensor2tensor_beside_the_paper():
    assert explained(base_experiment(), "t2t_base") == [
        ("data.dataset", "wmt14_translate/de-en", "wmt_t2t_translate/de-en"),
        ("tokenizer.vocab_size", "37000", "32768"),
        ("training.steps, tokens_seen", "100000, 2,500.0 M", "300000, 9,830.4 M"),
        ("training.tokens_per_update", "25000", "32768"),
        ("peak_learning_rate, optimizer.warmup_steps", "6.99e-04, 4000", "9.88e-04, 8000"),
        ("optimizer.beta2", "0.98", "0.997"),
        ("model.attention_dropout, model.activation_dropout", "0.0, 0.0", "0.1, 0.1"),
        ("model.norm", "post", "pre"),
        ("decoding.max_extra_length", "50", "100"),
    ]
    big = explained(of_config("big"), "t2t_big")
    assert ("training.tokens_per_update", "25000", "16384") in big
    assert ("tokens_seen", "7,500.0 M", "4,915.2 M") in big  # as many steps
    # In all else T2T's big differs from the paper's as base does from base.
    steps = ("training.steps, tokens_seen", "tokens_seen")
    assert [d[0] for d in big if d[0] not in steps] == [
        what for what, _, _ in explained(base_experiment(), "t2t_base") if what not in steps
    ]


def test_base_beside_big():
    """The rows of Table 3, and their peaks of Equation 3."""
    assert explained(base_experiment(), "big") == [
        ("averaged_checkpoints, training.checkpoint_every", "5, 1500", "20, 600"),
        ("training.steps, tokens_seen", "100000, 2,500.0 M", "300000, 7,500.0 M"),
        ("peak_learning_rate", "6.99e-04", "4.94e-04"),
        ("model.d_model", "512", "1024"),
        ("model.d_ff", "2048", "4096"),
        ("model.num_heads", "8", "16"),  # of 64 in both
        ("model.dropout", "0.1", "0.3"),
    ]


def test_an_unknown_recipe_is_an_error_that_names_those_there_are():
    message = "no recipe 'bigger'.*: base, big, t2t_base, t2t_big, multi30k_tiny$"
    for ask in (
        lambda: explain(base_experiment(), "bigger", evaluation=evaluation_of(base_experiment())),
        lambda: shown([], "bigger"),
    ):
        with pytest.raises(UserError, match=message):
            ask()


# --- The differences ----------------------------------------------------------------------


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


def test_the_steps_of_the_checkpoint_count_and_not_those_of_the_config():
    run = base_experiment()
    assert explained(run, last_step=40_000) == [
        ("training.steps, tokens_seen", "40000, 1,000.0 M", "100000, 2,500.0 M")
    ]
    # A run that has not come to the end of its warm-up has not had its peak.
    assert explained(run, averaged=1, last_step=1000)[2] == (
        "peak_learning_rate",
        "1.75e-04",
        "6.99e-04",
    )


def test_as_many_tokens_in_other_batches():
    run = base_experiment(training_steps=200_000, training_tokens_per_update=12_500)
    assert explained(run) == [
        ("training.steps", "200000", "100000"),
        ("training.tokens_per_update", "12500", "25000"),
    ]


def test_the_search_is_that_of_the_evaluation():
    penalty = {"name": "length_power", "alpha": 0.5}
    changes = {"beam_size": 1, "length_penalty": penalty, "max_extra_length": 31}
    assert explained(base_experiment(), **changes) == [
        ("decoding.beam_size", "1", "4"),
        ("decoding.length_penalty, length_penalty_formula", "0.5, length_power", "0.6, gnmt"),
        ("decoding.max_extra_length", "31", "50"),
    ]


def test_checkpoints_averaged():
    often = base_experiment(training_checkpoint_every=300)
    assert explained(often) == [("training.checkpoint_every", "300", "1500")]
    assert explained(often, averaged=1) == [("averaged_checkpoints", "1", "5")]
    tiny = explained(of_config("multi30k_tiny"), "multi30k_tiny", averaged=3)
    assert tiny == [("averaged_checkpoints", "3", "10 or 1")]


def test_the_test_set_is_the_split_of_the_evaluation():
    assert explained(base_experiment(), split="validation") == [
        ("data.test_split", "validation", "test")
    ]
    tiny = of_config("multi30k_tiny")
    for split, expected in (
        ("test_2016_flickr", []),
        ("test_2017_flickr", [("data.test_split", "test_2017_flickr", "test_2016_flickr")]),
    ):
        assert explained(tiny, "multi30k_tiny", averaged=10, split=split) == expected


def test_text_files_are_other_data():
    files = {f"data_{split}_source": f"{split}.en" for split in ("train", "validation", "test")}
    files |= {f"data_{split}_target": f"{split}.de" for split in ("train", "validation", "test")}
    run = base_experiment(**files)
    train = (
        "data.dataset, data.train_split, data.train_source, data.train_target",
        "None, None, train.en, train.de",
        "wmt14_translate/de-en, train, None, None",
    )
    test = "data.test_split, data.test_source, data.test_target"
    assert explained(run) == [(test, "None, test.en, test.de", "test, None, None"), train]
    assert explained(run, split="validation")[0] == (
        test,
        "None, validation.en, validation.de",
        "test, None, None",
    )


def test_what_is_written_but_not_used_does_not_differ():
    assert explained(base_experiment(model_d_k=64, model_max_positions=128)) == []
    learned = base_experiment(model_positions="learned", model_max_positions=128)
    assert explained(learned) == [
        ("model.positions, model.max_positions", "learned, 128", "sinusoidal, None")
    ]
    # Half the heads are heads of twice the size.
    assert explained(base_experiment(model_num_heads=4)) == [
        ("model.num_heads, model.d_k, model.d_v", "4, 128, 128", "8, 64, 64")
    ]


def test_a_run_of_another_family_is_not_compared():
    from configs import demo_rnn

    run = Config.from_dict(demo_rnn.get_config().to_dict())
    with pytest.raises(
        UserError, match=r"model\.family is 'rnn' in the run and 'transformer' in the"
    ):
        explained(run)


def test_facts_that_a_recipe_does_not_state_differ_from_none():
    run = {name: 1 for row in EFFECTS for name in row.facts}
    found = compare(run, {"model.norm": 2, "optimizer.beta1": 1, "training.seed": 3})
    assert values(found) == [("training.seed", "1", "3"), ("model.norm", "1", "2")]


def test_a_field_without_an_entry_comes_last_and_its_effect_is_not_known():
    fields = {"model.new_option": 1, "model.norm": 1}
    found = compare(fields, {"model.new_option": 2, "model.norm": 2})
    assert [(d.what, d.effect) for d in found[1:]] == [("model.new_option", "not known")]


# --- The table ----------------------------------------------------------------------------


def test_the_table_names_each_field_once_and_no_removed_one():
    known = [name for row in EFFECTS for name in row.facts] + IRRELEVANT
    assert len(known) == len(set(known))
    assert set(known) <= {*flat(base_experiment()), *DERIVED}


@pytest.mark.parametrize("row", EFFECTS, ids=lambda row: row.facts[0])
def test_every_effect_has_a_figure_or_is_unknown_and_has_a_source(row):
    assert re.search(r"\d\.\d|not known to us in isolation|none seen", row.effect)
    assert "memory" not in row.effect + row.source
    # A section or table of the paper, an issue, a file of a repository, or a publication.
    assert re.search(r"(Section|Table)s? \d|issues? #\d|\w\.(py|md)\b|\b20\d\d\)?,", row.source)


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


@pytest.mark.parametrize("recipe", RECIPES)
def test_lines_fit_the_terminal(recipe):
    run = base_experiment(
        **{f"data_train_{side}": f"/{'folder/' * 30}{side}" for side in ("source", "target")},
        **{f"tokenizer_{side}_model": f"/{'folder/' * 30}{side}" for side in ("source", "target")},
        tokenizer_joint=False,
        model_share_embeddings="none",
    )
    text = shown(explain(run, recipe, evaluation=evaluation_of(run, averaged=2)), recipe)
    assert max(map(len, text.splitlines())) <= 100
    # And of rows that this run does not have.
    rows = [Difference(", ".join(row.facts), "1", "2", row.effect, row.source) for row in EFFECTS]
    assert max(map(len, shown(rows, recipe).splitlines())) <= 100


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_scores_to_compare_are_in_scores_json(recipe):
    there_are = corpus_scores(["ein Haus"], ["ein Haus"], target_language="de")
    named = re.findall(r"\bbleu\w*", find_recipe(recipe).comparable)
    assert named
    assert set(named) <= set(there_are)
