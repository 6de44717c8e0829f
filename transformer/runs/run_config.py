"""A config file as checked, frozen sections, and its copy in the work directory."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.models.family import FAMILIES, Family, find_family
from transformer.runs import renamed_fields
from transformer.runs.config_fields import check_type, part_of, path_fields, required
from transformer.system.commands import command
from transformer.system.errors import UserError, nearest
from transformer.system.files import remove_leftovers, write_atomically
from transformer.system.paths import check_no_pattern, checked, looked_up
from transformer.system.reading import MISSING, read_json, read_text
from transformer.system.sharding import MeshConfig
from transformer.tasks.task import TASKS, Metric, Task, find_task
from transformer.training.optimizers import OptimizerConfig
from transformer.training.step import TrainingConfig

CONFIG = "config.json"  # in a work directory
# The format of work directories. A commit that cannot continue those of earlier ones raises it.
FORMAT = 2
# In a work directory with one set of parameters: which they are. See exports/workdir.py.
EXPORTED = "exported.json"


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """See configs/base.py."""

    name: str


@dataclasses.dataclass(frozen=True)
class Config:
    """The sections of a config file.

    The family decides the class of `model`. The task decides which of `data`, `tokenizer` and
    `decoding` exist, and their classes. A section that a task does not have is None.
    """

    task: TaskConfig
    model: Any
    optimizer: OptimizerConfig
    training: TrainingConfig
    mesh: MeshConfig
    data: Any = None
    tokenizer: Any = None
    decoding: Any = None

    def __post_init__(self):
        training, metrics = self.training, self.kind.metrics
        if training.best_metric not in metrics:
            raise UserError(
                f"training.best_metric is {training.best_metric!r:.60}, which the task "
                f"{self.task.name} does not measure; give one of: {', '.join(metrics)}"
            )
        if self.best_metric.full and training.full_validation_every == 0:
            cheap = [name for name, metric in metrics.items() if not metric.full]
            raise UserError(
                f"training.best_metric is {training.best_metric!r:.60}, but "
                "training.full_validation_every is 0 (never); set training.best_metric to "
                f"{' or '.join(map(repr, cheap))}"
            )
        decay_steps = self.optimizer.decay_steps
        if decay_steps is not None and training.steps > decay_steps:
            raise UserError(
                f"training.steps is {training.steps}, but the learning rate is 0 from update "
                f"optimizer.decay_steps = {decay_steps} on; set the latter to training.steps"
            )
        if training.init_from and self.tokenizer and self.tokenizer.source_model:
            raise UserError(
                "tokenizer.source_model and training.init_from are both given, and the latter has "
                "a tokenizer of its own; leave one of them out"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], *, paths_are_here: bool = True) -> "Config":
        """Checks every key and value; raises UserError for the first that is wrong.

        paths_are_here: False for a recorded config, whose paths may be on another machine.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        _check_keys(config, known, "")
        task, family = _choice(config, "task", "name"), _choice(config, "model", "family")
        types = section_types(task, family)
        choice = f"--config.task.name={task}", f"--config.model.family={family}"
        _check_keys(config, types, "", choice)
        _check_complete(config, types, "", choice)
        sections = {
            name: checked_section(name, section, config[name], choice, paths_are_here)
            for name, section in types.items()
        }
        return cls(**sections)

    @functools.cached_property
    def kind(self) -> Task:
        """The task of this config."""
        return find_task(self.task.name)

    @functools.cached_property
    def family(self) -> Family:
        return find_family(self.model.family)

    @property
    def best_metric(self) -> Metric:
        """The metric that training.best_metric names."""
        return self.kind.metrics[self.training.best_metric]

    @property
    def sections(self) -> dict[str, Any]:
        """The sections that are not None, by name."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: section for name, section in named if section is not None}

    def to_json(self) -> str:
        """The content of WORKDIR/config.json."""
        sections = {name: dataclasses.asdict(x) for name, x in self.sections.items()}
        return json.dumps({"format": FORMAT, **sections}, indent=2) + "\n"

    @property
    def sha256(self) -> str:
        """The hash of the config as `save` writes it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def flat(config: Config) -> dict[str, Any]:
    """The fields of all sections, by names such as model.d_model."""
    return {name: value for name, value, _ in _leaves("", config.sections)}


def _leaves(prefix: str, sections: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and mark of all fields, also of those in parts such as data.corpora.news."""
    for section, fields in sections.items():
        for field in dataclasses.fields(fields):
            name, value = f"{prefix}{section}.{field.name}", getattr(fields, field.name)
            if part_of(field.type):
                yield from _leaves(f"{name}.", value)
            else:
                yield name, value, field.metadata


def checked_section(
    name: str,
    kind: type,
    values: Any,
    choice: Sequence[str] = (),
    paths_are_here: bool = True,
) -> Any:
    """A section of a config, or a part of one; raises UserError as `Config.from_dict` does.

    choice: the flags of train.py that choose the config.
    """

    def mapping(name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise UserError(f"config section {name} is {value!r:.60}; it must hold fields")
        return value

    types = {field.name: field.type for field in dataclasses.fields(kind)}
    _check_keys(mapping(name, values), types, f"{name}.", choice)
    _check_complete(values, required(kind), f"{name}.", choice)
    whole = dict(values)
    for field, value in values.items():
        full = f"{name}.{field}"
        if part := part_of(types[field]):
            whole[field] = {
                key: checked_section(f"{full}.{key}", part, x, choice, paths_are_here)
                for key, x in mapping(full, value).items()
            }
            continue
        check_type(f"config.{full}", value, types[field])
        if value and paths_are_here and field in path_fields(kind):
            checked(value, full)
    return kind(**whole)


def with_fields(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values for fields such as decoding.beam_size; None changes nothing."""
    changes: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        section, _, field = path.partition(".")
        if value is not None:
            if path not in flat(config):
                raise UserError(
                    f"--{field} is given, and the task {config.task.name} has no {path}; leave it "
                    "out"
                )
            changes.setdefault(section, {})[field] = value
    sections = {
        name: dataclasses.replace(config.sections[name], **fields)
        for name, fields in changes.items()
    }
    return dataclasses.replace(config, **sections)


def fields_marked(config: Config, flag: str, default: bool) -> dict[str, bool]:
    """The mark `flag` that `setting` gives each field, by names such as model.d_model.

    default: for fields without `setting`.
    """
    return {name: mark[flag] if mark else default for name, _, mark in _leaves("", config.sections)}


def type_of_field(path: str, choice: Sequence[str] = ()) -> Any:
    """The type of a field such as model.d_model; raises UserError unless some config has it.

    None for a whole section. choice: the flags of train.py that choose the config.
    """
    sections = _all_fields()
    section, _, field = path.partition(".")
    _check_keys([section], sections, "", choice)
    if not field:
        return None
    field, _, inner = field.partition(".")
    _check_keys([field], sections[section], f"{section}.", choice)
    kind = sections[section][field]
    if not inner:
        return kind
    field = inner.partition(".")[2]
    part = part_of(kind)
    types = {x.name: x.type for x in dataclasses.fields(part)} if part else {}
    _check_keys([field], types, f"{path.removesuffix(field)}", choice)
    return types[field]


def _all_fields() -> dict[str, dict[str, Any]]:
    """The types of all fields of all tasks and families, by section and name."""
    sections: dict[str, dict[str, Any]] = {}
    for task in TASKS:
        for family in FAMILIES:
            for name, section in section_types(task, family).items():
                types = {field.name: field.type for field in dataclasses.fields(section)}
                sections[name] = sections.get(name, {}) | types
    return sections


def is_run(directory: Path) -> bool:
    """True if it has a run's config. Hugging Face's folders have another file of that name."""
    path = directory / CONFIG
    try:
        return '"training"' in read_text(path, None)  # links are usual in the hub's cache
    except MISSING:
        return False
    except UserError:
        return True  # `load` explains it


def load(workdir: Path) -> Config:
    """The config of a work directory; raises UserError if it has none that can be used."""
    path = workdir / CONFIG
    mend = "restore it or start a new run"
    try:
        config = read_json(path, workdir, dict[str, Any], mend)
    except MISSING as error:
        raise UserError(
            f"{workdir} is not a work directory: it has no config.json{looked_up(workdir)}; give "
            "the --workdir of a training run"
        ) from error
    found = config.pop("format", 1)  # the first commits wrote none
    if found != FORMAT:
        raise UserError(
            f"{workdir} has format {found!r:.60}, and this commit reads format {FORMAT} alone; "
            "use the commit that the run was started with (starts.jsonl names it), or start a new "
            "run"
        )
    if isinstance(config.get("data"), dict):
        config["data"] = renamed_fields.data_section(config["data"])
    try:
        return Config.from_dict(config, paths_are_here=False)
    except UserError as error:  # the file was edited
        raise UserError(f"{path}: {error}") from error


def check_workdir(workdir: Path, config: Config) -> None:
    """Raises UserError if `workdir` belongs to another config or holds other files."""
    check_no_pattern(workdir)
    if (workdir / EXPORTED).exists():
        raise UserError(
            f"{workdir} was exported without what training needs to continue; train in the work "
            "directory that it comes from, or in a new one"
        )
    if (workdir / CONFIG).exists():
        earlier = load(workdir)
        may_change = [fields_marked(x, "may_change", False) for x in (earlier, config)]
        if changes := _changes(flat(earlier), flat(config), may_change[0] | may_change[1]):
            raise UserError(
                f"{workdir} holds a run with another config ({'; '.join(changes)}); "
                "give another --workdir, or the config the run was started with"
            )
    elif workdir.exists() and (not workdir.is_dir() or any(map(_is_foreign, workdir.iterdir()))):
        raise UserError(
            f"{workdir} is not empty and holds no run (no config.json); give another --workdir"
        )


def save(workdir: Path, config: Config) -> None:
    """Makes `workdir` the work directory of this config."""
    remove_leftovers(workdir.rglob("*.tmp"))
    write_atomically(workdir / CONFIG, config.to_json())


def files_of(config: Config) -> list[str]:
    """The files of a work directory, besides checkpoints, that make up a trained model."""
    return [CONFIG, *config.kind.files]


def architecture(config: Config) -> dict[str, Any]:
    """The model fields in which two models that share parameters must agree."""
    marked = fields_marked(config, "architecture", True)
    return {
        name: value
        for name, value in flat(config).items()
        if name.startswith("model.") and marked[name]
    }


def section_types(task: str, family: str) -> dict[str, type]:
    """The section classes of a config with this task and this family."""
    fields = dataclasses.fields(Config)
    types = {field.name: field.type for field in fields if field.default is dataclasses.MISSING}
    return types | {"model": find_family(family).config} | dict(find_task(task).sections)


def _choice(config: Mapping[str, Any], section: str, field: str) -> Any:
    """The field that decides the classes of sections."""
    _check_complete(config, [section], "")
    if not isinstance(config[section], Mapping):
        raise UserError(f"config section {section} is {config[section]!r:.60}; it must hold fields")
    _check_complete(config[section], [field], f"{section}.")
    check_type(f"config.{section}.{field}", config[section][field], str)
    return config[section][field]


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], may_change: Mapping[str, bool]
) -> list[str]:
    """The changed fields with which a run cannot be continued, in words."""
    family = "model.family"  # fields of another family go without saying
    if old[family] != new[family]:
        return [f"{family} was {old[family]!r}, is {new[family]!r}"]
    # Corpora may come and go.
    old, new = ({**dict.fromkeys(may_change), **values} for values in (old, new))
    return [
        f"{name} was {old[name]!r}, is {new[name]!r}"
        for name in new
        if old[name] != new[name] and not may_change[name]
    ]


def _is_foreign(path: Path) -> bool:
    """True unless the file is the lock or one that a killed run may leave before its config."""
    return path.name != "lock" and not path.name.endswith(".tmp")


def _check_keys(
    given: Collection[str], known: Collection[str], prefix: str, choice: Sequence[str] = ()
) -> None:
    """Raises UserError for a key that is not known. choice: flags that choose task and family."""
    for key in given:
        if key not in known:
            listing = f"{command('train', *choice, '--help-config')} lists the fields"
            if new := renamed_fields.FIELDS.get(f"{prefix}{key}"):
                raise UserError(f"config.{prefix}{key} is called config.{new} now: {listing}")
            section, others = prefix.removesuffix("."), _all_fields()
            if key in (others.get(section, ()) if section else others):
                hint = "of another task or model family; give a config file that is made for this"
                raise UserError(f"Unknown config field config.{prefix}{key}, {hint}: {listing}")
            hint = f"{nearest(key, known, prefix, otherwise='')} {listing}".lstrip()
            raise UserError(f"Unknown config field config.{prefix}{key:.60}; {hint}")


def _check_complete(
    given: Collection[str], known: Collection[str], prefix: str, choice: Sequence[str] = ()
) -> None:
    for key in known:
        if key not in given:
            listing = command("train", *choice, "--help-config")
            raise UserError(f"config.{prefix}{key} is missing; {listing} says what it is")
