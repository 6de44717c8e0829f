"""Several processes, usually one on each host, that train as one."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Self

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from transformer.errors import UserError

COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of process 0, for a job of several processes."
)
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes the job has.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this one is, from 0.")


def initialize() -> None:
    """Joins the job's processes, before JAX is used; alone if there is no such job.

    The flags say so, or, where they are absent, Slurm (a step of several tasks) does.
    """
    given = [flag.value is not None for flag in (COORDINATOR, NUM_PROCESSES, PROCESS_ID)]
    if any(given) and not all(given):
        raise UserError(
            "--coordinator, --num_processes and --process_id go together; give all or none"
        )
    if all(given):
        if not 0 <= PROCESS_ID.value < NUM_PROCESSES.value:
            raise UserError(
                f"--process_id={PROCESS_ID.value} must be at least 0 and less than "
                f"--num_processes={NUM_PROCESSES.value}"
            )
        arguments = COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        arguments = ()  # JAX reads the rest from Slurm's variables
    else:
        return
    # JAX's own handler of SIGTERM would take the place of ours (preemption.py).
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(*arguments)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot join the other processes: {str(error)[:300]}") from error


def leave() -> None:
    """Parts from the other processes, when all of them do."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def is_first() -> bool:
    """Whether this process is the one that writes files and prints."""
    return jax.process_index() == 0


def in_all(flag: bool) -> bool:
    """Whether `flag` is true in every process; all of them must ask."""
    if jax.process_count() == 1:
        return flag
    return bool(np.all(multihost_utils.process_allgather(np.asarray(flag))))


@contextlib.contextmanager
def first_alone() -> Iterator[None]:
    """The block runs in process 0 first, then in the others: they find what it has made."""
    if jax.process_count() > 1 and not is_first():
        multihost_utils.sync_global_devices("first_alone")
    yield
    if jax.process_count() > 1 and is_first():
        multihost_utils.sync_global_devices("first_alone")


class Quiet:
    """Stands in, in the other processes, for what only process 0 has; its methods do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
