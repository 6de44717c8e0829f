"""Traces of a few training steps, for Perfetto and for benchmarks/profile_summary.py."""

import contextlib
import re
import sys
from pathlib import Path
from typing import Any

import jax

from transformer.system.errors import UserError

HLO_FILE = "train_step.hlo.txt"
STEP = "train step"  # the name of a step in the trace


def step_range(text: str, steps: int) -> range:
    """The updates that --profile=START:STOP selects in a run of `steps`; raises UserError."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not int(match[1]) < int(match[2]) <= steps:
        raise UserError(
            f"--profile={text} must be START:STOP, such as 100:103 for the three updates from "
            f"step 100 to step 103, with START < STOP <= training.steps = {steps}"
        )
    return range(int(match[1]), int(match[2]))


class Profile:
    """Traces the updates from step `steps.start` to `steps.stop` into a folder.

    The folder gets JAX's `plugins/profile/<time>/`, with a trace for Perfetto beside the one for
    XProf. It also gets the compiled program as text, which explains the names in the trace. Only
    the start and the end of the trace wait for the device.
    """

    def __init__(self, folder: Path, steps: range, program: jax.stages.Compiled):
        self._folder, self._steps, self._program = folder, steps, program
        self._tracing = False

    def before(self, step: int, state: Any) -> None:
        """Call this before the update of each step, with the state it starts from."""
        if step == self._steps.start and self._steps and not self._tracing:
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # each call of a function would be an event
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )
            self._tracing = True

    def after(self, step: int, state: Any) -> None:
        """Call this after each update, with the number of updates done and their state."""
        if self._tracing and step >= self._steps.stop:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Ends a running trace; if it cannot be written, training continues."""
        if self._tracing:
            self._tracing = False
            try:
                jax.profiler.stop_trace()
                (self._folder / HLO_FILE).write_text(self._program.as_text())
            except (OSError, jax.errors.JaxRuntimeError) as error:
                with contextlib.suppress(OSError):
                    print(f"warning: the trace is not written: {error}", file=sys.stderr)
