"""The config file of a resumed run: `train.py --workdir=W` reads W/config.json."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference

from transformer.runs.config_fields import part_of
from transformer.runs.run_config import load


def get_config(workdir: str) -> ConfigDict:
    """The config of a work directory; flags may set its fields as in any config file."""
    return _of_sections(load(Path(workdir)).sections)


def _of_sections(sections: Mapping[str, Any]) -> ConfigDict:
    config = ConfigDict()
    for name, section in sections.items():
        config[name] = ConfigDict()
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if part_of(field.type):
                value = _of_sections(value)
            elif value is None or isinstance(value, dict):  # a flag must know the possible types
                value = FieldReference(value, field_type=_type_beside_none(field.type))
            config[name][field.name] = value
    return config


def _type_beside_none(kind: object) -> type:
    return next(x for x in typing.get_args(kind) if x is not types.NoneType)
