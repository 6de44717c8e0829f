"""Presets: a config file for each kind of run, and sweeps of them in sweeps/.

A preset states what differs from another one; all come from base.py, which explains the fields. The
files are in configs/ of the repository, of which this room is a link.
Imports no model, no optimizer, no score and no work directory.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def find(name: str) -> str:
    """The path of a config file: one that is there, or a preset, as base or configs/base.py."""
    path = os.path.expanduser(name)
    preset = FOLDER / f"{path.removeprefix('configs/').removesuffix('.py')}.py"
    is_ours = FOLDER in preset.resolve().parents and preset.stem != "__init__"
    return str(preset) if is_ours and preset.is_file() and not Path(path).is_file() else path
