"""Logging to Weights & Biases, if training.wandb asks for it."""

import contextlib
import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer.system.buckets import address_of
from transformer.system.errors import UserError
from transformer.system.packages import optional_module
from transformer.system.terminal import say

_OFFLINE = ("offline", "disabled", "dryrun")
_HINT = "log in with `wandb login`, or set WANDB_MODE=offline"


def check_login() -> ModuleType:
    """The module wandb; raises UserError if it cannot log in. Never asks for a key."""
    wandb = optional_module("wandb", "tracking")
    try:
        if wandb.setup().settings.mode in _OFFLINE:
            return wandb
        if "prompt" in inspect.signature(wandb.login).parameters:
            has_key = wandb.login(prompt=False)
        else:  # earlier versions ask for a key where there is a terminal
            has_key = bool(wandb.api.api_key)
    except Exception as error:  # from wandb, the files it reads, or the network
        raise UserError(f"training.wandb: {error}; {_HINT}") from error
    if not has_key:
        raise UserError(f"training.wandb: no API key is known; {_HINT}")
    return wandb


class WandbWriter:
    """Sends the metrics of a run to a project there; WANDB_MODE=offline keeps them on disk.

    A resumed run stays the same run there. Data that cannot be sent do not end training.
    """

    def __init__(self, project: str, workdir: Path, fields: Mapping[str, Any]):
        wandb = check_login()
        try:
            self._run = wandb.init(
                project=project,
                name=workdir.resolve().name,
                id=hashlib.sha256(address_of(workdir.resolve()).encode()).hexdigest()[:12],
                resume="allow",
                dir=workdir,
                config=dict(fields),
                settings=wandb.Settings(console="off", silent=True),
            )
            # wandb's own step count cannot go back after a bad loss.
            self._run.define_metric("*", step_metric="step")
        except Exception as error:
            raise UserError(f"training.wandb: {error}; {_HINT}") from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            self._run.log({"step": step, **metrics})
        except Exception as error:
            say(f"warning: Weights & Biases: {error}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._run.finish()
