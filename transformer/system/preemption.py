"""Requests to stop: by job schedulers, preempted machines, a closed terminal, or Ctrl-C."""

import collections
import contextlib
import os
import signal
from types import FrameType
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer.system.sharding import replicated, split_over_all
from transformer.system.startup import STOPPED, stop_signals


class Stopped(SystemExit):
    """The run was told to stop, and can continue from where it was.

    together: all processes of the job stop here; otherwise only this one, during the start.
    """

    def __init__(self, *, together: bool):
        super().__init__(STOPPED)
        self.together = together


class StopRequest:
    """Notes the first signal; the second ends the process at once.

    Until `wait_for_steps`, the first signal raises Stopped wherever the program is. Python ignores
    exceptions in callbacks of the garbage collector, so `wait_for_steps` itself raises it at the
    latest. After that, `seen` tells that a signal came.
    """

    def __enter__(self) -> Self:
        self._received = False
        self._polled = False
        self._old = {number: signal.signal(number, self._handle) for number in stop_signals()}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        for other in self._old:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        when = " after this step; a second signal ends it now" if self._polled else ""
        # Not print(): the signal may have interrupted another print. The reader may be gone,
        # too, because of the same signal.
        with contextlib.suppress(OSError):
            os.write(2, f"{name}: stopping{when}\n".encode())
        if not self._polled:
            raise Stopped(together=False)

    def wait_for_steps(self, mesh: jax.sharding.Mesh) -> None:
        """From now on the program asks `seen` at each step."""
        self._mesh = mesh
        self._votes: collections.deque[jax.Array] = collections.deque()
        self._any = jax.jit(jnp.any, out_shardings=replicated(mesh))
        self.seen()  # compiles
        self._polled = True
        if self._received:
            raise Stopped(together=False)

    def seen(self) -> bool:
        """True if the run is to stop now, alike in every process. All must ask equally often.

        With several processes the answer is that of an earlier call. So nothing waits for the
        device, which finishes the current step meanwhile.
        """
        if jax.process_count() == 1:
            return self._received
        sharding = split_over_all(self._mesh)
        vote = jax.make_array_from_callback(
            (self._mesh.size,), sharding, lambda index: np.full(1, self._received)
        )
        self._votes.append(self._any(vote))
        return len(self._votes) > 2 and bool(self._votes.popleft())
