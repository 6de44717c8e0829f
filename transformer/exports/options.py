"""Options of a model and of its search that an export does not know: they are refused.

So no export silently drops an option that is newer than it.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError

# They change no output of a trained model.
NOT_AT_INFERENCE = "model.kernels", "model.rematerialize"
# Arguments of the other system's call (docs/exporting.md).
OF_THE_CALL = "decoding.length_penalty_form", "decoding.max_length_ratio"


def check_known(model: TrainedModel, system: str, *known: Collection[str]) -> None:
    """Raises UserError for an option that is in none of `known` and has not its default.

    Options are the fields with defaults; an export reads all the others.
    """
    sections = {"model": model.config.model}
    if model.config.decoding:  # flags may have changed it
        sections["decoding"] = model.task.translator.config
    for section, config in sections.items():
        for field in dataclasses.fields(config):
            value, name = vars(config)[field.name], f"{section}.{field.name}"
            is_usual = field.default in (value, dataclasses.MISSING)
            if is_usual or any(name in names for names in known):
                continue
            instead = "export a model without it, or in another --format"
            if section == "decoding":
                instead = f"give --{field.name}={field.default} to export without it"
            raise UserError(f"{name} is {value!r}, which {system} does not have; {instead}")


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
