"""Packages that only a part of the project needs."""

import importlib
from types import ModuleType

from transformer.system.errors import UserError


def optional_module(name: str, extra: str = "") -> ModuleType:
    """Imports a module that only some runs need; UserError if its package is missing.

    extra: the extra of pyproject.toml that has the package; "": all installations should.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        ours = f"'.[{extra}]'" if extra else "."
        raise UserError(
            f"this needs the package {name.partition('.')[0]}; run: pip install -e {ours} in "
            "the repository"
        ) from error
