"""Explains why a score differs from a published one: compares a run with a recipe.

    python evaluate.py --workdir=runs/mine --explain=base

recipes.toml, beside this file, has the recipes and the known effect of each difference. A fact is a
config field by name, such as model.norm, or one of DERIVED.
"""

import importlib
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import Config, flat
from transformer.system import distributed
from transformer.system.errors import UserError

WIDTH = 100  # in characters, for a terminal
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# Facts that follow from several fields, or from the evaluation. tokens_seen: as tokens_per_update
# counts them. peak_learning_rate: reached within the updates that were made.
DERIVED = (
    *("averaged_checkpoints", "tokens_seen", "peak_learning_rate", "length_penalty_formula"),
    "data.corpora",
)
IRRELEVANT = _TABLES["irrelevant"]


class Effect(NamedTuple):
    """The known effect of facts that belong together."""

    facts: list[str]
    effect: str
    source: str


class Recipe(NamedTuple):
    """The settings behind a published score; recipes.toml explains the fields."""

    config: str
    changes: dict[str, Any]
    averaged: list[int]
    unstated: list[str]
    published: str
    comparable: str
    beyond: str

    def resolved(self) -> Config:
        """The recipe's config with its changes."""
        module = importlib.import_module(f"transformer.configs.{self.config}")
        config = module.get_config().to_dict()
        for name, value in self.changes.items():
            section, _, field = name.partition(".")
            config[section][field] = value
        return Config.from_dict(config)


class Difference(NamedTuple):
    """Facts of one Effect that differ, with their values in the same order."""

    what: str
    run: str
    recipe: str
    effect: str
    source: str


def _recipe(table: Mapping[str, Any]) -> Recipe:
    if "like" not in table:
        return Recipe(**table)
    other = _recipe(_TABLES["recipe"][table["like"]])
    own = {name: value for name, value in table.items() if name not in ("like", "changes")}
    changes = other.changes | table.get("changes", {})
    return other._replace(**own, changes=changes)


EFFECTS = [Effect(**table) for table in _TABLES["effect"]]
RECIPES = {name: _recipe(table) for name, table in _TABLES["recipe"].items()}


def explain_run(name: str, splits: Sequence[str], restore: Callable[[], TrainedModel]) -> None:
    """Prints how the run that `restore` returns, and its evaluation, differ from a recipe."""
    find_recipe(name)
    model = restore()
    for split in splits:
        evaluation = {**model.provenance(), "split": split}
        differences = explain(model.config, name, evaluation=evaluation)
        if distributed.is_first():
            print(shown(differences, name))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; raises UserError if there is none."""
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name!r}; give one of: {', '.join(RECIPES)}")
    return RECIPES[name]


def explain(config: Config, recipe_name: str, *, evaluation: Mapping[str, Any]) -> list[Difference]:
    """Lists how an evaluated run differs from a recipe, the most important difference first.

    `evaluation` has the checkpoints and the search from TrainedModel.provenance(), and `split`, as
    in scores.json. The updates of the checkpoint count instead of the config's. Raises UserError
    for an unknown recipe, and for a run of another task or family.
    """
    recipe = find_recipe(recipe_name)
    run, published = flat(config), flat(recipe.resolved())
    for name in ("task.name", "model.family"):
        if run[name] != published[name]:
            raise UserError(
                f"--explain={recipe_name}: {name} is {run[name]!r} in the run and "
                f"{published[name]!r} in the recipe; such runs are not compared"
            )
    averaged = len(evaluation["checkpoint_steps"])
    run |= {
        "training.steps": max(evaluation["checkpoint_steps"]),
        "averaged_checkpoints": averaged,
        "decoding.beam_size": evaluation["beam_size"],
        "decoding.length_penalty": evaluation["length_penalty"]["alpha"],
        "length_penalty_formula": evaluation["length_penalty"]["name"],
        "decoding.max_extra_length": evaluation["max_extra_length"],
    }
    any_of = " or ".join(map(str, recipe.averaged))
    published |= {
        "averaged_checkpoints": averaged if averaged in recipe.averaged else any_of,
        "length_penalty_formula": "gnmt",
    }
    unstated = set(recipe.unstated)
    if averaged == 1:  # the distance between checkpoints matters only to their mean
        unstated.add("training.checkpoint_every")
    stated = {k: v for k, v in _facts(published, "test").items() if k not in unstated}
    return compare(_facts(run, evaluation["split"]), stated)


def compare(run: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Difference]:
    """The EFFECTS in which two sets of facts differ, among the facts that a recipe has.

    Fields without an entry in recipes.toml come last.
    """
    known = {fact for effect in EFFECTS for fact in effect.facts} | set(IRRELEVANT)
    others = [Effect([name], "not known", "none yet") for name in recipe if name not in known]
    differences = []
    for facts, effect, source in [*EFFECTS, *others]:
        if names := [f for f in facts if f in recipe and run[f] != recipe[f]]:
            values = (", ".join(str(side[name]) for name in names) for side in (run, recipe))
            differences.append(Difference(", ".join(names), *values, effect, source))
    return differences


def shown(differences: Sequence[Difference], recipe_name: str) -> str:
    """Text for a terminal: the published score, scores comparable with it, then the differences."""
    recipe = find_recipe(recipe_name)
    parts = [
        _filled(f"Recipe {recipe_name}: ", recipe.published),
        _filled("Metric, of those in scores.json: ", recipe.comparable),
        "Differences of this run, the most important first:"
        if differences
        else "This run differs in nothing that is known to matter, but for the seed.",
    ]
    for number, (what, *rest) in enumerate(differences, 1):
        lines = [_filled(f"{number:2}. ", what)]
        names = Difference._fields[1:]
        lines += [_filled(f"    {n:8}", text) for n, text in zip(names, rest, strict=True)]
        parts.append("\n".join(lines))
    if differences:
        parts.append(_filled("", _TABLES["sources"]))
    parts.append(_filled("Outside of configs: ", recipe.beyond))
    return "\n\n".join(parts)


def _facts(fields: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Adds the facts that follow from fields; drops the fields that are not used."""
    sides = ("source", "target")
    named = split in ("train", "validation", "test")  # other splits belong to the data set
    uses_text_files = any(fields[f"data.train_{side}"] for side in sides)
    not_used = ["data.dataset", "data.train_split", "data.test_split"] if uses_text_files else []
    if fields["model.positions"] != "learned":
        not_used.append("model.max_positions")
    steps, warmup = fields["training.steps"], fields["optimizer.warmup_steps"]
    schedule, peak = fields["optimizer.schedule"], fields["optimizer.peak_learning_rate"]
    if schedule == "noam":  # equals inverse_sqrt with this peak
        schedule, peak = "inverse_sqrt", (fields["model.d_model"] * warmup) ** -0.5
    head = fields["model.d_model"] // fields["model.num_heads"]
    return {
        **fields,
        "data.test_split": fields[f"data.{split}_split"] if named else split,
        **{f"data.test_{x}": fields[f"data.{split}_{x}"] if named else None for x in sides},
        "data.corpora": ", ".join(
            dict.fromkeys(x.split(".")[2] for x in fields if "corpora." in x)
        ),
        "tokens_seen": f"{steps * fields['training.tokens_per_update'] / 1e6:,.1f} M",
        "optimizer.schedule": schedule,
        "peak_learning_rate": f"{peak * min(1, steps / max(warmup, 1)):.2e}",
        "model.d_k": fields["model.d_k"] or head,
        "model.d_v": fields["model.d_v"] or head,
        **dict.fromkeys(not_used),
    }


def _filled(start: str, text: str) -> str:
    """Wraps text to WIDTH characters, all lines but the first indented below its start."""
    indent = " " * len(start)
    return textwrap.fill(
        text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    )
