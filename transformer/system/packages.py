"""Packages that only a part of the project needs."""

import importlib
from types import ModuleType

from transformer.system.errors import UserError


def optional_module(name: str, extra: str) -> ModuleType:
    """Imports a module of a package of one of our extras; UserError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"this needs the package {name.partition('.')[0]}; run: pip install -e '.[{extra}]' in "
            "the repository"
        ) from error
