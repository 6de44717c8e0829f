"""Weights & Biases, if training.wandb asks for it."""

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer.system.errors import UserError
from transformer.system.packages import optional_module


class WandbWriter:
    """Sends the metrics of a run to a project there; WANDB_MODE=offline keeps them on disk.

    A run that goes on stays the same run there. What cannot be sent does not end training.
    """

    def __init__(self, project: str, workdir: Path, fields: Mapping[str, Any]):
        wandb = optional_module("wandb", "requirements-tracking.txt")
        try:
            self._run = wandb.init(
                project=project,
                name=workdir.resolve().name,
                id=hashlib.sha256(str(workdir.resolve()).encode()).hexdigest()[:12],
                resume="allow",
                dir=workdir,
                config=dict(fields),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise UserError(
                f"training.wandb: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
            ) from error
        self._error = wandb.Error
        # Not its own count of steps, which cannot go back after a bad loss.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            self._run.log({"step": step, **metrics})
        except self._error as error:
            print(f"warning: Weights & Biases: {error}", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(self._error):
            self._run.finish()
