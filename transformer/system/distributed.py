"""Jobs of several processes, usually one on each host, that work as one."""

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax

# Neither the coordinator's store nor the hosts of a TPU have a public name.
from jax._src.clusters.cloud_tpu_cluster import GceTpuCluster, GkeTpuCluster
from jax._src.distributed import global_state

from transformer.system import buckets
from transformer.system.errors import UserError
from transformer.system.job_flags import COORDINATOR, NUM_PROCESSES, PROCESS_ID
from transformer.system.terminal import escape_standard_output, say

SECONDS_UNTIL_IT_SAYS_SO = 10.0  # that this process waits for the others
SECONDS_FOR_PROCESS_0, SECONDS_FOR_ITS_NAME = 300.0, 30.0  # until it listens, until it resolves
_A_WEEK = 7 * 24 * 3600 * 1000  # milliseconds: longer than any wait here
_END = "transformer/end"  # the key by which a process ends the whole job
_HEARTBEAT = 25  # seconds without one, after which JAX takes a process for dead and ends the others
_SECONDS_BETWEEN_LOOKS = 1.0  # at the key _END
_LOCAL_DEVICES = "jax_cuda_visible_devices", "jax_rocm_visible_devices"

_asked = itertools.count()  # numbers questions, alike in all processes
_barriers = itertools.count()  # numbers calls of `barrier`
_has_left = threading.Event()


# --- Joining ------------------------------------------------------------------------------


def initialize() -> None:
    """Joins the processes of the job, if there is one; call it before JAX is used.

    From then on only process 0's Python prints to standard output, and `end` ends all processes.
    """
    arguments = job()
    if arguments is None:
        return
    # JAX's own handler of SIGTERM would replace ours (preemption.py).
    jax.config.update("jax_enable_preemption_service", False)
    wait = "waiting for the other processes of the job; after 5 minutes JAX ends this one (SIGABRT)"
    if PROCESS_ID.value and COORDINATOR.value:
        _find_coordinator(COORDINATOR.value)
    timer = threading.Timer(SECONDS_UNTIL_IT_SAYS_SO, _say, [wait])
    timer.start()
    try:
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=_HEARTBEAT)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot join the other processes ({str(error)[:300]}); say where they are with "
            "--coordinator, --num_processes and --process_id"
        ) from error
    finally:
        timer.cancel()
    if _has_all_gpus_it_sees():
        for name in _LOCAL_DEVICES:
            jax.config.update(name, "all")
    _watcher.start()
    _take_standard_output()


def _find_coordinator(address: str) -> None:
    """Returns when process 0 listens. If it does not, raises UserError; JAX would abort."""
    host, _, port = address.rpartition(":")
    start, is_told = time.monotonic(), False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, UnicodeError) as error:
            # The names of pods resolve only a little after the pods start.
            is_known = not isinstance(error, socket.gaierror | UnicodeError)
            patience = SECONDS_FOR_PROCESS_0 if is_known else SECONDS_FOR_ITS_NAME
            waited = time.monotonic() - start
            if waited > patience:
                raise UserError(
                    f"no process 0 is found at --coordinator={address} ({error}); start it, or "
                    "name its host and port"
                ) from error
            if waited >= SECONDS_UNTIL_IT_SAYS_SO and not is_told:
                _say(f"waiting for process 0 at {address} ({error})")
                is_told = True
            time.sleep(1)


def _take_standard_output() -> None:
    """Keeps stdout for process 0's Python; C++ output, such as Gloo's lines, goes to stderr."""
    if sys.stdout is None:  # closed: descriptor 1 may be another file by now
        return
    sys.stdout.flush()
    file = os.dup(1)
    with contextlib.suppress(OSError):  # stderr is closed
        os.dup2(2, 1)
    if not is_first():
        os.dup2(os.open(os.devnull, os.O_WRONLY), file)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    # Buffered by line, since JAX may end the process without a flush. Open until it ends.
    sys.stdout = open(file, "w", buffering=1, encoding=encoding, errors=errors)  # noqa: SIM115
    escape_standard_output()


def job() -> dict[str, Any] | None:
    """The arguments of jax.distributed.initialize; None for a process that works alone.

    They come from the flags. Without flags, the launcher decides: Slurm (a step of several
    tasks), Open MPI, or Cloud TPU (a slice of several hosts). The arguments are then empty, as
    JAX asks the launcher itself.
    """
    given = [flag.value is not None for flag in (COORDINATOR, NUM_PROCESSES, PROCESS_ID)]
    if not any(given):
        names = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"
        tasks = {name: os.environ.get(name, "1") for name in names}
        for name, value in tasks.items():
            if not value.isdecimal():
                raise UserError(f"the environment variable {name} is {value!r}; unset it")
        return {} if max(map(int, tasks.values())) > 1 or _num_tpu_hosts() > 1 else None
    if not all(given):
        raise UserError(
            "--coordinator, --num_processes and --process_id go together; give all or none"
        )
    if not re.fullmatch(r".+:\d{1,5}", COORDINATOR.value):
        raise UserError(
            f"--coordinator={COORDINATOR.value} must be the host and port of process 0, such as "
            "node1:1234"
        )
    if not 0 <= PROCESS_ID.value < NUM_PROCESSES.value:
        raise UserError(
            f"--process_id={PROCESS_ID.value} must be at least 0 and less than "
            f"--num_processes={NUM_PROCESSES.value}"
        )
    return {
        "coordinator_address": COORDINATOR.value,
        "num_processes": NUM_PROCESSES.value,
        "process_id": PROCESS_ID.value,
        # Detection would ask Slurm or Kubernetes which devices to use.
        "cluster_detection_method": "deactivate",
    }


def refuse_jobs(what: str) -> None:
    """Raises UserError in a job of several processes."""
    if job() is not None:
        raise UserError(f"{what} works in one process; start it once, without srun or mpirun")


def _num_tpu_hosts() -> int:
    """The number of hosts in the TPU slices of this job, as JAX finds it; 1 without a TPU.

    And with JAX_PLATFORMS=cpu on a host of a TPU, where a process works by itself.
    """
    if "tpu" not in (jax.config.jax_platforms or "").split(","):
        return 1
    with contextlib.suppress(OSError):  # a metadata server that does not answer
        for cluster in (GkeTpuCluster, GceTpuCluster):
            if cluster.is_env_present():
                return cluster.get_process_count()
    return 1


def _has_all_gpus_it_sees() -> bool:
    """True if all GPUs that this process sees are its own in this job.

    By default JAX gives the i-th process of a node the i-th GPU. That is wrong for a process
    alone on its node, and for one that is bound to a GPU and sees no other.
    """
    if "JAX_LOCAL_DEVICE_IDS" in os.environ:
        return False
    return (
        re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")) is not None
        or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
        or "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    )


# --- Working together ---------------------------------------------------------------------


def is_first() -> bool:
    """True if this is process 0, which writes files and prints."""
    return jax.process_index() == 0


def from_first(make: Callable[[], Any]) -> Any:
    """The result of `make` in process 0, a JSON value; all processes must call this.

    They may wait as long as it takes. In a computation on several devices they may not: on CPUs
    the first such computation fails when one process is 30 s late.
    """
    if jax.process_count() == 1:
        return make()
    key = f"transformer/from_first/{next(_asked)}"
    if is_first():
        global_state.client.key_value_set(key, json.dumps(make()))
    return _wait_for(key)


def in_all(flag: bool) -> bool:
    """True if `flag` is true in every process; all of them must call this."""
    if jax.process_count() == 1:
        return flag
    number = next(_asked)
    keys = [f"transformer/in_all/{number}/{i}" for i in range(jax.process_count())]
    global_state.client.key_value_set(keys[jax.process_index()], json.dumps(flag))
    return from_first(lambda: all([_wait_for(key) for key in keys]))


def _wait_for(key: str) -> Any:
    """The JSON value of a key, once it is set."""
    while True:  # signals are handled in between
        try:
            return json.loads(global_state.client.blocking_key_value_get(key, 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def barrier() -> None:
    """Returns when all processes have called it."""
    if jax.process_count() > 1:
        global_state.client.wait_at_barrier(f"transformer/barrier/{next(_barriers)}", _A_WEEK)


@contextlib.contextmanager
def first_alone() -> Iterator[None]:
    """Runs the block in process 0 first, then in the others, which find what it has made."""
    if not is_first():
        from_first(lambda: None)
        buckets.fetch_again()
    yield
    if is_first():
        buckets.push()
        from_first(lambda: None)


# --- Ending -------------------------------------------------------------------------------


def leave() -> None:
    """Leaves the job; waits until all processes do."""
    if has_joined():
        barrier()
        _has_left.set()
        _watcher.join()
        jax.distributed.shutdown()


def has_joined() -> bool:
    """True if this process works with others."""
    return _watcher.is_alive()


def end(code: int, message: str) -> NoReturn:
    """Ends this process and the whole job, with an exit code and a message.

    The others may be anywhere: in a computation that waits for this process, they would
    otherwise never hear of it. The message is printed once, on standard error; if several
    processes call this, it is that of the first.
    """
    if has_joined():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
            global_state.client.key_value_set(_END, json.dumps([code, message]))
        _watcher.join()  # never returns, unless the job is gone
    _say(message)
    sys.exit(code)


def _watch() -> None:
    """Ends this process when one of the job has called `end`; returns if the job is gone."""
    while not _has_left.wait(_SECONDS_BETWEEN_LOOKS):
        try:
            code, message = json.loads(global_state.client.key_value_try_get(_END))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                continue
            return
        is_coordinator = global_state.service is not None
        if is_coordinator:
            _say(message)
        with contextlib.suppress(OSError):  # the disk may be full, the reader gone
            sys.stdout.flush()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # one may be dead
            global_state.client.wait_at_barrier(_END, 10_000)
        if is_coordinator:  # if it ended first, JAX would end the others in its own way
            time.sleep(0.5)
        os._exit(code)


_watcher = threading.Thread(target=_watch, daemon=True)


def _say(message: str) -> None:
    if message:
        say(message)
