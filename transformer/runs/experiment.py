"""A config file as checked, frozen sections, and the copy of it in the work directory."""

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer.system.errors import UserError
from transformer.system.files import write_atomically
from transformer.models.transformer import TransformerConfig
from transformer.training.optimizers import OptimizerConfig
from transformer.system.sharding import MeshConfig
from transformer.data.sources import SPLITS, DataConfig, PairSource
from transformer.data.tokenizers import TokenizerConfig, Tokenizers
from transformer.training.step import TrainingConfig
from transformer.decoding.translation import DecodingConfig

# What a run may be continued with: it does not change the meaning of the steps already done.
# The files may move, too: whether their text is the same is seen from its hash.
MAY_CHANGE = frozenset(
    {
        "data.data_dir",
        "data.raw_dir",
        *(f"data.{split}_{side}" for split in (*SPLITS, "extra") for side in ("source", "target")),
        "mesh.data",
        "mesh.fsdp",
        "mesh.tensor",
        "training.steps",
        "training.max_tokens_per_device",
        "training.log_every",
        "training.keep_last",
        "training.patience",
        "training.max_loss_rise",
        "training.rollback_after",
        "training.max_rollbacks",
    }
)
# In a work directory of one set of parameters: which they are. See transformer/export.py.
EXPORTED = "exported.json"

# Fields that the oldest runs have not; what they would have said.
ADDED = {
    "data.extra_source": None,
    "data.extra_target": None,
    "training.r_drop": 0.0,
    "training.init_from": None,
    "tokenizer.sampling_alpha": 0.0,
    "tokenizer.num_samples": 1,
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The sections of configs/base.py."""

    data: DataConfig
    tokenizer: TokenizerConfig
    model: TransformerConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    decoding: DecodingConfig
    mesh: MeshConfig

    def __post_init__(self):
        if self.model.share_embeddings == "all" and not self.tokenizer.joint:
            raise UserError(
                "model.share_embeddings is 'all' but tokenizer.joint is False; set it to "
                "'decoder' or 'none', or set tokenizer.joint to True"
            )
        if self.training.init_from and self.tokenizer.source_model:
            raise UserError(
                "tokenizer.source_model is given, and training.init_from, which has a tokenizer of "
                "its own; leave one of them out"
            )
        longest = min(self.data.max_source_length, self.data.max_target_length)
        if self.model.positions == "learned" and self.model.max_positions > longest:
            raise UserError(
                f"model.max_positions = {self.model.max_positions}, but training would never reach "
                f"the last of these: data.max_source_length is {self.data.max_source_length} and "
                f"data.max_target_length {self.data.max_target_length}; set it to {longest} or less"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "Experiment":
        """Checks every key and value; raises UserError for the first that is wrong."""
        sections = {field.name: field.type for field in dataclasses.fields(cls)}
        _check_keys(config, sections, "")
        _check_complete(config, sections, "")
        for name, section in sections.items():
            fields = {field.name: field.type for field in dataclasses.fields(section)}
            if not isinstance(config[name], Mapping):
                raise UserError(f"config section {name} is {config[name]!r}; it must hold fields")
            _check_keys(config[name], fields, f"{name}.")
            _check_complete(config[name], fields, f"{name}.")
            for field, kind in fields.items():
                _check_type(f"{name}.{field}", config[name][field], kind)
        return cls(**{name: section(**config[name]) for name, section in sections.items()})

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The content of WORKDIR/config.json."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @property
    def sha256(self) -> str:
        """The hash of the config as `save` writes it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def check_field(path: str) -> None:
    """Raises UserError unless `path`, such as model.d_model, names a field."""
    sections = {field.name: field.type for field in dataclasses.fields(Experiment)}
    section, _, field = path.partition(".")
    _check_keys([section], sections, "")
    if field:
        fields = [field.name for field in dataclasses.fields(sections[section])]
        _check_keys([field], fields, f"{section}.")


def load(workdir: Path) -> Experiment:
    """The experiment of a work directory."""
    path = workdir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it holds no JSON object")
        for path_of_field, value in ADDED.items():
            section, _, field = path_of_field.partition(".")
            if isinstance(config.get(section), dict):
                config[section].setdefault(field, value)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"{workdir} is not a work directory: it has no config.json; give the --workdir of a "
            "training run"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start a new run") from error
    try:
        return Experiment.from_dict(config)
    except UserError as error:  # of another version, or edited
        raise UserError(f"{path}: {error}") from error


def check_workdir(workdir: Path, experiment: Experiment) -> None:
    """Raises UserError if `workdir` belongs to another experiment or holds other files."""
    if (workdir / EXPORTED).exists():
        raise UserError(
            f"{workdir} was exported, without what training goes on from; train in the work "
            "directory that it comes from, or in a new one"
        )
    if (workdir / "config.json").exists():
        old, new = flat(load(workdir).to_dict()), flat(experiment.to_dict())
        changes = [
            f"{key} was {old[key]!r}, is {new[key]!r}"
            for key in new
            if old[key] != new[key] and key not in MAY_CHANGE
        ]
        if changes:
            raise UserError(
                f"{workdir} holds a run with another config ({'; '.join(changes)}); "
                "give another --workdir, or the config the run was started with"
            )
    elif workdir.exists() and (not workdir.is_dir() or any(map(_is_foreign, workdir.iterdir()))):
        raise UserError(
            f"{workdir} is not empty and holds no run (no config.json); give another --workdir"
        )


def save(workdir: Path, experiment: Experiment) -> None:
    """Makes `workdir` the work directory of this experiment."""
    for path in workdir.glob("*.tmp"):  # of processes that were killed while they wrote
        if not path.name.startswith("lock."):  # of one that may just be asking for the lock
            path.unlink()
    write_atomically(workdir / "config.json", experiment.to_json())


def architecture(config: Experiment) -> dict[str, Any]:
    """The fields that say what is computed with the parameters, but for dropout."""
    fields = flat({"model": dataclasses.asdict(config.model)})
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        del fields[f"model.{name}"]
    return fields


def data_id(train: PairSource, validation: PairSource, tokenizers: Tokenizers) -> str:
    """A hash of all text that training sees, as token ids."""
    hashes = [train.fingerprint, validation.fingerprint, *(t.sha256 for t in tokenizers)]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def _is_foreign(path: Path) -> bool:
    """Whether a file is neither the lock nor what a killed run may leave before its config."""
    return path.name != "lock" and not path.name.endswith(".tmp")


def flat(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of all sections, by names such as model.d_model."""
    return {
        f"{section}.{key}": v for section, fields in config.items() for key, v in fields.items()
    }


def _check_keys(given: Iterable[str], known: Collection[str], prefix: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"config.{prefix}{key} is no field of the configuration; {hint}")


def _check_complete(given: Collection[str], known: Iterable[str], prefix: str) -> None:
    for key in known:
        if key not in given:
            raise UserError(f"config.{prefix}{key} is missing; see configs/base.py")


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Whether a value has its field's type: int, float, str or bool, or one of these or None."""
    if isinstance(value, bool):
        fits = kind is bool
    elif isinstance(value, int):
        fits = isinstance(value, kind) or (abs(value) < 2**53 and isinstance(0.0, kind))
    else:
        fits = isinstance(value, kind)
    if not fits:
        kind = getattr(kind, "__name__", kind)
        raise UserError(f"config.{name} is {value!r}; it must be of type {kind}")
