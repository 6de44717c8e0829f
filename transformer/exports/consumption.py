"""Read tracking for exports: a parameter or field that an export does not read is refused.

So no export silently drops an option that it does not know.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax

from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

# Fields that change no output of a trained model.
NOT_AT_INFERENCE = {
    "model.dropout": "of training",
    "model.attention_dropout": "of training",
    "model.activation_dropout": "of training",
    "model.dtype": "weights are written in float32, or as --quantization says",
    "model.kernels": "how the same is computed",
    "model.rematerialize": "how gradients are computed",
}
# Search fields that are arguments of the other system's call (docs/exporting.md).
OF_THE_CALL = {
    "decoding.length_penalty": "there it has another form",
    "decoding.length_penalty_form": "there it has another form",
    "decoding.max_extra_length": "there the longest output does not depend on the source",
    "decoding.max_length_ratio": "there the longest output does not depend on the source",
}


class Reading:
    """The parts of a model, which record their reads; `check` comes last."""

    def __init__(self, model: TrainedModel):
        self._unread = dict.fromkeys(leaf_names((model.params, model.extra)))
        self.params = _Leaves(model.params, "0", self._unread)
        self._sections = {"model": recorded(model.config.model)}
        if model.config.decoding:  # flags may have changed it
            self._sections["decoding"] = recorded(model.task.translator.config)

    @property
    def model(self) -> Any:
        return self._sections["model"][0]

    @property
    def decoding(self) -> Any:
        return self._sections["decoding"][0]

    def take(self, name: str) -> None:
        """Records that a leaf, named as in `leaf_names`, has been read."""
        self._unread.pop(name, None)

    def check(self, system: str, irrelevant: Mapping[str, str]) -> None:
        """Raises UserError for an unread parameter, and for an unread field that is not default.

        irrelevant: fields such as model.dropout that need not be read, each with the reason.
        """
        for section, (config, read) in self._sections.items():
            for field in dataclasses.fields(config):
                value, name = vars(config)[field.name], f"{section}.{field.name}"
                if field.name in read or name in irrelevant or value == field.default:
                    continue
                instead = "export a model without it, or in another --format"
                if section == "decoding":
                    instead = f"give --{field.name}={field.default} to export without it"
                raise UserError(f"{name} is {value!r}, which {system} does not have; {instead}")
        if self._unread:
            first, *others = (name.partition("/")[2] for name in self._unread)
            more = f" and {len(others)} more" if others else ""
            raise UserError(
                f"the model has the parameter {first}{more}, for which {system} has no place; "
                "export a model without it, or in another --format"
            )


def leaf_names(variables: tuple[Any, Any]) -> list[str]:
    """The names of parameters, such as 0/target_embedding/table_VD, and of extra state, from 1/."""
    paths = [path for path, _ in jax.tree.flatten_with_path(variables)[0]]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def recorded(config: Any) -> tuple[Any, set[str]]:
    """A copy of a config section, and the set of its fields that have been read since."""
    names, read = {field.name for field in dataclasses.fields(config)}, set()

    class Recorded(type(config)):
        def __getattribute__(self, name: str) -> Any:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

        # A dataclass's own versions would read all fields.
        __eq__, __hash__, __repr__ = object.__eq__, object.__hash__, object.__repr__

    copy = object.__new__(Recorded)
    vars(copy).update(vars(config))
    return copy, read


def expect(config: Any, system: str, values: Mapping[str, Collection[Any]], hint: str = "") -> None:
    """Raises UserError unless each named field of the model has one of the values.

    All heads together must be as wide as the model.
    """
    for field, known in values.items():
        if (found := getattr(config, field)) not in known:
            *most, last = map(repr, known)
            allowed = f"{', '.join(most)} or {last}" if most else last
            raise UserError(f"model.{field} is {found!r}, and {system} has only {allowed}{hint}")
    size = config.d_model / config.num_heads
    if {config.key_size, config.value_size} != {size}:
        raise UserError(
            f"model.d_k is {config.key_size} and model.d_v {config.value_size}, and {system} has "
            f"only heads of d_model / num_heads = {size:g}{hint}"
        )


class _Leaves(dict):
    """A nested dict of arrays; taking an array removes it from `unread`."""

    def __init__(self, tree: Mapping[Any, Any], name: str, unread: dict[str, None]):
        self._name, self._unread = name, unread
        super().__init__(
            (key, _Leaves(x, f"{name}/{key}", unread) if isinstance(x, Mapping) else x)
            for key, x in tree.items()
        )

    def __getitem__(self, key: Any) -> Any:
        self._unread.pop(f"{self._name}/{key}", None)
        return super().__getitem__(key)
