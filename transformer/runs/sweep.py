"""The runs of a sweep and their names. See docs/sweeps.md."""

import dataclasses
import difflib
import importlib.util
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer import configs
from transformer.runs.run_config import Config, type_of_field
from transformer.system.errors import UserError, code_of_the_user
from transformer.system.paths import looked_up

SEED = "training.seed"
CONFIG = "config"  # an axis over config files
MOST_RUNS = 10_000  # each is checked before the first one starts
LONGEST_NAME = 200  # in bytes; file systems allow 255, and a log's name is longer than its run's


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a sweep, from `get_sweep` of a sweep file or the flags of sweep.py.

    rows: fields and their values, a dict for each row, which may have a `name`.
    grid: values of fields; every combination is a row.
    zip: values of fields; the first values are a row, then the second values, ...
    seeds: of each row.
    evaluate: flags of evaluate.py; "none" if a run is only trained.
    Each row of `rows` is combined with each one of `grid` and each one of `zip`.
    """

    rows: Sequence[Mapping[str, Any]] = ({},)
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    zip: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
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

    @property
    def flags(self) -> list[str]:
        """The flags of train.py for this run."""
        return self.flags_with(())

    def flags_with(self, more: Sequence[str]) -> list[str]:
        """The flags, with `more` for all runs before those of the row, which override them."""
        values = {SEED: self.seed, **self.settings}
        return [
            f"--config={self.config_file}",
            *more,
            *(f"--config.{field}={x}" for field, x in values.items()),
        ]


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
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"{path}: get_sweep gives an unknown field {key!r}; {hint}")
    plan = Plan(**given)
    if not _is_list(plan.rows) or not all(isinstance(row, Mapping) for row in plan.rows):
        raise UserError(f"{path}: rows is {plan.rows!r:.60}; it must be a list of dicts")
    for name in ("grid", "zip"):
        axes = getattr(plan, name)
        if not isinstance(axes, Mapping) or not all(_is_list(axis) for axis in axes.values()):
            raise UserError(f"{path}: {name} must be a dict from fields to lists of values")
    for axis in (*plan.rows, plan.grid, plan.zip):
        for field in axis:
            if not isinstance(field, str):
                raise UserError(
                    f"{path}: {field!r:.60} is no name of a field; give one such as 'model.d_ff'"
                )
    lengths = {field: len(values) for field, values in plan.zip.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{path}: the lists of zip have different lengths: {lengths}")
    if not _is_list(plan.seeds) or not all(type(x) is int for x in plan.seeds[:MOST_RUNS]):
        raise UserError(f"{path}: seeds is {plan.seeds!r:.60}; it must be a list of whole numbers")
    axes = [plan.rows, *plan.grid.values(), *list(plan.zip.values())[:1], plan.seeds]
    try:
        count = math.prod(map(len, axes))
    except OverflowError as error:  # range(10**30)
        raise UserError(f"{path}: the sweep has an endless list; give a shorter one") from error
    if count > MOST_RUNS:
        raise UserError(f"{path}: the sweep has {count:,} runs; it may have {MOST_RUNS:,}")
    if not isinstance(plan.evaluate, str):
        raise UserError(f"{path}: evaluate is {plan.evaluate!r:.60}; it must be flags in a string")
    return plan


def runs_in(path: str) -> list[Run]:
    """All runs of a file, without changes from the command line; see `runs_of`."""
    return runs_of(read_plan(path), path, lambda file: sections_of(file, {}), Path(path).stem)


def runs_of(
    plan: Plan, config_file: str, load: Callable[[str], dict[str, Any]], own: str
) -> list[Run]:
    """All runs of a plan, row by row; raises UserError for invalid fields and names.

    load: returns the sections of a config file, with the overrides of the command line.
    own: the name of a row that sets nothing.
    """
    axes = [
        [dict(row) for row in plan.rows],
        _combined(plan.grid, itertools.product(*plan.grid.values())),
        _combined(plan.zip, zip(*plan.zip.values(), strict=True)) if plan.zip else [{}],
    ]
    fields = {
        field for axis in axes for part in axis for field in part if field not in ("name", CONFIG)
    }
    for field in sorted(fields):
        type_of_field(field)
    if SEED in fields:
        raise UserError(f"{SEED} is an axis; give the seeds of all rows as `seeds`")
    runs: dict[str, Run] = {}
    for parts in itertools.product(*axes):
        settings = _joined(parts)
        given = settings.pop("name", None)
        file = settings.get(CONFIG, config_file)
        if not isinstance(file, str):
            raise UserError(f"the sweep sets {CONFIG} to {file!r:.60}; give the name of a file")
        rest = {field: value for part in parts[1:] for field, value in part.items()}
        named = _name(rest if given else settings, fields)
        row = "_".join(str(part) for part in (given, named) if part) or own
        if not re.fullmatch(r"[\w.=+-]+", row):
            raise UserError(f"the row {row!r} cannot name a folder; use letters, digits and _.=+-")
        settings.pop(CONFIG, None)
        sections = load(file)
        for field, value in settings.items():
            _set(sections, field, value, file)
        for seed in plan.seeds:
            sections["training"]["seed"] = seed
            try:
                config = Config.from_dict(sections)
            except UserError as error:  # a grid may have impossible combinations
                config = error
            run = Run(row, seed, file, settings, config)
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
    section, _, name = field.partition(".")
    if name not in sections.get(section, {}):
        raise UserError(f"the sweep sets {field}, which {path} does not have")
    sections[section][name] = value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _combined(axes: Mapping[str, Any], values: Any) -> list[dict[str, Any]]:
    return [dict(zip(axes, combination, strict=True)) for combination in values]


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a row; raises UserError if two axes set the same field."""
    settings: dict[str, Any] = {}
    for part in parts:
        if both := settings.keys() & part.keys():
            raise UserError(f"two axes set {min(both)}; let one of them do so")
        settings |= part
    return settings


def _name(settings: Mapping[str, Any], fields: set[str]) -> str:
    """A name such as num_heads=4_dropout=0.1; sections are left out where that is unambiguous."""
    lasts = [field.rpartition(".")[2] for field in fields]
    parts = []
    for field, value in settings.items():
        last = field.rpartition(".")[2]
        name = last if lasts.count(last) <= 1 else field
        if field == CONFIG:
            parts.append(Path(value).stem)
        else:
            parts.append(f"{name}={re.sub('[^A-Za-z0-9.+-]+', '-', str(value)).strip('-')}")
    return "_".join(parts)
