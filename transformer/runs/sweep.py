"""The runs of a sweep and their names. See docs/sweeps.md."""

import dataclasses
import importlib.util
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer import configs
from transformer.runs.run_config import Config, type_of_field
from transformer.system.errors import UserError, code_of_the_user, nearest
from transformer.system.paths import looked_up

SEED = "training.seed"
CONFIG = "config"  # an axis over config files
MOST_RUNS = 10_000  # each is checked before the first one starts
LONGEST_NAME = 200  # in bytes; file systems allow 255, and a log's name is longer than its run's


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a sweep, from `get_sweep` of a sweep file or the flags of sweep.py.

    rows: fields and their values, a dict for each row, which may have a `name`.
    grid: values of fields; every combination, with each one of `rows`, is a row.
    seeds: of each row.
    evaluate: flags of evaluate.py; "none" if a run is only trained.
    """

    rows: Sequence[Mapping[str, Any]] = ({},)
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    seeds: Sequence[int] = (0,)
    evaluate: str = "--split=test"


class Run(NamedTuple):
    """One of the runs of a sweep."""

    row: str  # the name of its row
    seed: int
    config_file: str
    settings: dict[str, Any]  # the row's settings, by field
    config: Config | UserError  # a UserError says why it cannot be run

    @property
    def name(self) -> str:
        return f"{self.row}-{self.seed}"

    def flags(self, more: Sequence[str] = ()) -> list[str]:
        """The flags of train.py; `more` is for all runs, and those of the row override it."""
        values = {SEED: self.seed, **self.settings}
        own = [f"--config.{field}={value}" for field, value in values.items()]
        return [f"--config={self.config_file}", *more, *own]


def read_plan(path: str) -> Plan:
    """The plan in a file; the plan of one row if the file has none."""
    get_sweep = getattr(_module(path), "get_sweep", None)
    if get_sweep is None:
        return Plan()
    with code_of_the_user(path):
        given = get_sweep()
    return plan_of(given, path)


def sections_of(path: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a config file, with other values of some fields."""
    module = _module(path)
    with code_of_the_user(path):
        sections = module.get_config().to_dict()
    for field, value in overrides.items():
        _set(sections, field, value, path)
    return sections


def plan_of(given: Any, path: str) -> Plan:
    """The plan in a dict from `path`; raises UserError if the dict is wrong."""
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: get_sweep gives {given!r:.60}; it must give a dict of axes")
    known = [field.name for field in dataclasses.fields(Plan)]
    for key in given:
        if key not in known:
            hint = nearest(str(key), known)
            raise UserError(f"{path}: get_sweep gives an unknown field {key!r}; {hint}")
    plan = Plan(**given)
    if not _is_list(plan.rows) or not all(isinstance(row, Mapping) for row in plan.rows):
        raise UserError(f"{path}: rows is {plan.rows!r:.60}; it must be a list of dicts")
    if not isinstance(plan.grid, Mapping) or not all(map(_is_list, plan.grid.values())):
        raise UserError(f"{path}: grid must be a dict from fields to lists of values")
    for field in itertools.chain(plan.grid, *plan.rows):
        if not isinstance(field, str):
            raise UserError(
                f"{path}: {field!r:.60} is no name of a field; give one such as 'model.d_ff'"
            )
    if not _is_list(plan.seeds) or not all(type(x) is int for x in plan.seeds[:MOST_RUNS]):
        raise UserError(f"{path}: seeds is {plan.seeds!r:.60}; it must be a list of whole numbers")
    try:
        count = math.prod(map(len, [plan.rows, *plan.grid.values(), plan.seeds]))
    except OverflowError as error:  # range(10**30)
        raise UserError(f"{path}: the sweep has an endless list; give a shorter one") from error
    if count > MOST_RUNS:
        raise UserError(f"{path}: the sweep has {count:,} runs; it may have {MOST_RUNS:,}")
    if not isinstance(plan.evaluate, str):
        raise UserError(f"{path}: evaluate is {plan.evaluate!r:.60}; it must be flags in a string")
    return plan


def runs_of(plan: Plan, config_file: str, overrides: Mapping[str, Any] = {}) -> list[Run]:
    """All runs of a plan, row by row; raises UserError for invalid fields and names.

    overrides: the fields that the command line sets in all runs whose rows do not set them.
    """
    fields = {*itertools.chain(plan.grid, *plan.rows)} - {"name", CONFIG}
    for field in sorted(fields):
        type_of_field(field)
    if SEED in fields:
        raise UserError(f"{SEED} is an axis; give the seeds of all rows as `seeds`")
    runs: dict[str, Run] = {}
    for row, values in itertools.product(plan.rows, itertools.product(*plan.grid.values())):
        of_grid = dict(zip(plan.grid, values, strict=True))
        if both := row.keys() & of_grid.keys():
            raise UserError(f"a row and the grid set {min(both)}; let one of them do so")
        settings = {**row, **of_grid}
        given = settings.pop("name", None)
        named = _name(of_grid if given else settings, fields)
        name = "_".join(str(part) for part in (given, named) if part) or Path(config_file).stem
        if not re.fullmatch(r"[\w.=+-]+", name):
            raise UserError(f"the row {name!r} cannot name a folder; use letters, digits and _.=+-")
        file = settings.pop(CONFIG, config_file)
        sections = sections_of(file, overrides)
        for field, value in settings.items():
            _set(sections, field, value, file)
        for seed in plan.seeds:
            sections["training"]["seed"] = seed
            try:
                config = Config.from_dict(sections)
            except UserError as error:  # a grid may have impossible combinations
                config = error
            run = Run(name, seed, file, settings, config)
            if (size := len(run.name.encode())) > LONGEST_NAME:
                raise UserError(
                    f"the name of the run {run.name:.60}... has {size} bytes, more than "
                    f"{LONGEST_NAME}; give its row a shorter `name`"
                )
            if run.name in runs:
                raise UserError(
                    f"two runs have the name {run.name}; give rows a `name` each, and seeds once"
                )
            runs[run.name] = run
    if not runs:
        raise UserError("the sweep has no run: a list of values, or the seeds, are empty")
    return list(runs.values())


def _module(path: str) -> Any:
    """Loads the config file's module again: config_flags does not share the one it has loaded."""
    if not isinstance(path, str):
        raise UserError(f"the sweep sets {CONFIG} to {path!r:.60}; give the name of a file")
    path = configs.find(path)
    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}{looked_up(path)}; name one")
    spec = importlib.util.spec_from_file_location("config_of_a_sweep", path)
    module = importlib.util.module_from_spec(spec)
    with code_of_the_user(path):
        spec.loader.exec_module(module)
    return module


def _set(sections: dict[str, Any], field: str, value: Any, path: str) -> None:
    """Sets a field; raises UserError if the file does not have it."""
    *parts, name = field.split(".")
    for part in parts:
        sections = sections.get(part, {})
    if name not in sections:
        raise UserError(f"the sweep sets {field}, which {path} does not have")
    sections[name] = value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _name(settings: Mapping[str, Any], fields: set[str]) -> str:
    """A name such as num_heads=4_dropout=0.1; sections are left out where that is unambiguous."""
    lasts = [field.rpartition(".")[2] for field in fields]
    parts = []
    for field, value in settings.items():
        last = field.rpartition(".")[2]
        name = last if lasts.count(last) <= 1 else field
        if field == CONFIG:
            parts.append(Path(str(value)).stem)
        else:
            parts.append(f"{name}={re.sub('[^A-Za-z0-9.+-]+', '-', str(value)).strip('-')}")
    return "_".join(parts)
