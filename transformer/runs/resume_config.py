"""The config file of a resumed run: `train.py --workdir=W` reads W/config.json."""

import dataclasses
import types
import typing
from pathlib import Path

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference

from transformer.runs.run_config import load


def get_config(workdir: str) -> ConfigDict:
    """The config of a work directory; flags may set its fields as in any config file."""
    config = ConfigDict()
    for name, section in load(Path(workdir)).sections.items():
        config[name] = ConfigDict()
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if value is None or isinstance(value, dict):  # a flag must know the possible types
                value = FieldReference(value, field_type=_type_beside_none(field.type))
            config[name][field.name] = value
    return config


def _type_beside_none(kind: object) -> type:
    return next(x for x in typing.get_args(kind) if x is not types.NoneType)
