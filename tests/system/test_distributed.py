"""Several processes: how they find each other, work together, and end together."""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import jax
import pytest
from absl import flags
from jax._src.clusters import cloud_tpu_cluster
from processes import flags_of_a_job, run_together, slurm_variables
from scripts import ROOT, SIDES, assert_refused, run, toy_flags, write_toy

from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.locks import lock_workdir

SLURM = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_NODELIST": "node[07-09]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
GKE = {"TPU_WORKER_HOSTNAMES": "host-0,host-1", "MEGASCALE_NUM_SLICES": "1"}


@pytest.fixture(autouse=True)
def no_job_here(monkeypatch):
    flags.FLAGS(["test"])
    for name in (*SLURM, *OPEN_MPI, *GKE, "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", "localhost:1")  # nobody answers there


@pytest.fixture
def on_a_tpu(monkeypatch):
    """On a TPU's host, where JAX, at import, chooses the platforms."""
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "tpu,cpu")
    yield
    jax.config.update("jax_platforms", before)


def set_all(monkeypatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def set_flags(monkeypatch, values: dict[str, str | int]) -> None:
    for name, value in values.items():
        monkeypatch.setattr(flags.FLAGS[name], "value", value)


# --- Joining ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "is_job"),
    [
        ({}, False),
        (SLURM, True),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, False),  # one task of an allocation for three
        ({n: v for n, v in SLURM.items() if "STEP" not in n}, False),  # the script of sbatch
        (OPEN_MPI, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        (GKE, False),  # on a machine without a TPU
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
    ],
)
def test_a_job_is_detected(monkeypatch, variables, is_job):
    set_all(monkeypatch, variables)
    assert distributed.job() == ({} if is_job else None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_processes": 2}, "--coordinator, --num_processes and --process_id go together"),
        (
            {"coordinator": "localhost:1", "num_processes": 2, "process_id": 2},
            "--process_id=2 must be .* less than --num_processes=2",
        ),
        (
            {"coordinator": "localhost", "num_processes": 2, "process_id": 1},
            "--coordinator=localhost must be the host and port",
        ),
        ({}, "SLURM_STEP_NUM_TASKS is 'x'; unset it"),
    ],
)
def test_what_is_no_job(monkeypatch, given, message):
    set_all(monkeypatch, {"SLURM_STEP_NUM_TASKS": "x"})
    set_flags(monkeypatch, given)
    with pytest.raises(UserError, match=message):
        distributed.job()


@pytest.mark.parametrize(
    ("variables", "is_job"),
    [
        (GKE, True),
        (GKE | {"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        (GKE | {"TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "2"}, True),
        ({}, False),  # a VM whose metadata server does not answer
    ],
)
def test_hosts_of_a_tpu(monkeypatch, on_a_tpu, variables, is_job):
    set_all(monkeypatch, variables)
    assert distributed.job() == ({} if is_job else None)


def test_a_host_of_a_tpu_without_its_chips_is_no_job(monkeypatch, on_a_tpu):
    """As with JAX_PLATFORMS=cpu, to prepare data on one of the hosts."""
    jax.config.update("jax_platforms", "cpu")
    set_all(monkeypatch, GKE)
    assert distributed.job() is None


def joined(monkeypatch) -> tuple[dict, str]:
    """What `initialize` tells JAX, and the GPUs that JAX is to use then."""
    given, settings = {}, {}

    def initialize(**arguments):
        settings["jax_cuda_visible_devices"] = "0"  # as JAX does in a Slurm step
        given.update(arguments)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.setattr(distributed, "_watcher", mock.Mock())
    monkeypatch.setattr(distributed, "_find_coordinator", mock.Mock())
    monkeypatch.setattr(distributed, "_take_standard_output", mock.Mock())
    distributed.initialize()
    assert distributed._watcher.start.called
    assert settings["jax_enable_preemption_service"] is False
    return given, settings["jax_cuda_visible_devices"]


def test_flags_come_before_slurm(monkeypatch):
    set_all(monkeypatch, SLURM)
    set_flags(monkeypatch, {"coordinator": "host:7", "num_processes": 5, "process_id": 3})
    arguments, _ = joined(monkeypatch)
    assert arguments.pop("heartbeat_timeout_seconds") < 30
    assert arguments == {
        "coordinator_address": "host:7",
        "num_processes": 5,
        "process_id": 3,
        "cluster_detection_method": "deactivate",
    }


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({}, "all"),  # alone on its node
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, "0"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1"}, "0"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3"}, "0"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "3"}, "all"),  # bound
        ({"JAX_LOCAL_DEVICE_IDS": "0"}, "0"),
    ],
)
def test_a_process_has_the_gpus_that_no_other_is_to_use(monkeypatch, variables, devices):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    set_all(monkeypatch, SLURM | variables)
    assert joined(monkeypatch)[1] == devices


def test_a_job_that_jax_cannot_read(monkeypatch):
    set_all(monkeypatch, OPEN_MPI)
    with pytest.raises(UserError, match=r"cannot join the other processes \(.*--coordinator"):
        distributed.initialize()


@pytest.mark.parametrize(
    ("address", "reason"),
    [("no.such.host.invalid:7", r"\(.*\); start it"), ("localhost:1", "refused"), ("a..b:7", "")],
)
def test_a_coordinator_that_is_not_there(monkeypatch, address, reason):
    for name in ("SECONDS_FOR_PROCESS_0", "SECONDS_FOR_ITS_NAME"):
        monkeypatch.setattr(distributed, name, 0)
    set_flags(monkeypatch, {"coordinator": address, "num_processes": 2, "process_id": 1})
    with pytest.raises(
        UserError, match=f"no process 0 is found at --coordinator={address} .*{reason}"
    ):
        distributed.initialize()


def test_alone_nothing_is_joined(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", None)
    distributed.initialize()
    assert not distributed.has_joined()
    assert distributed.from_first(lambda: [3]) == [3]
    assert distributed.in_all(True)
    assert not distributed.in_all(False)
    distributed.barrier()
    distributed.leave()


# --- Working together, in two real processes ----------------------------------------------

# Each writes down what it has found; then they end in some way.
TOGETHER = """
import json, os, time
from pathlib import Path
import jax, numpy as np
from absl import flags
from jax._src.clusters import cloud_tpu_cluster
from transformer.runs import cli
from transformer.system.distributed import first_alone, from_first, in_all, initialize, is_first
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, distribute, split_rows

ENDING = flags.DEFINE_string("ending", "", "")

def main():
    initialize()
    found, made, rows = {}, [], np.arange(2 * 24).reshape(2, 24)
    found["first"] = [from_first(lambda: {"of": jax.process_index()}), from_first(lambda: None)]
    found["in_all"] = [in_all(True), in_all(is_first()), in_all(False)]
    with first_alone():
        found["there"] = Path("made").exists()
        time.sleep(0.3)
        Path("made").touch()

    def make(part):
        made.append(part.tolist())
        return part[..., None] * np.arange(3)

    batch = distribute(make, rows, split_rows(data_mesh(), axis=1))
    total = jax.jit(lambda x: x.sum())
    found["made"], found["sum"] = made, int(total(batch))
    Path(f"found{jax.process_index()}").write_text(json.dumps(found))
    print("only process 0 is heard")
    if ENDING.value == "killed":
        time.sleep(3600) if is_first() else os.kill(os.getpid(), 9)
    elif ENDING.value == "first killed":
        os.kill(os.getpid(), 9) if is_first() else time.sleep(3600)
    elif ENDING.value == "defect":
        int(total(batch)) if is_first() else 1 / 0
    else:
        if is_first():
            time.sleep(3600)
        raise UserError("one\\nline")

cli.run(main)
"""


def together(directory: Path, ending: str) -> list:
    """Both results, of a Slurm step."""
    (directory / "together.py").write_text(TOGETHER)
    command = [directory / "together.py", f"--ending={ending}"]
    return run_together(2 * [command], directory, slurm_variables(2))


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("user error", 2),
        pytest.param("defect", 1, marks=pytest.mark.slow),
    ],
)
def test_two_work_and_end_together(tmp_path, ending, code):
    """However the first is at the end: waiting for the second on its devices, or asleep."""
    start = time.monotonic()
    first, second = together(tmp_path, ending)
    assert (first.code, second.code) == (code, code), first.err + second.err
    assert time.monotonic() - start < 110  # without `end`, up to two minutes
    assert b"only process 0 is heard\n" in first.out
    assert b"heard" not in second.out
    found = [json.loads((tmp_path / f"found{i}").read_text()) for i in (0, 1)]
    # Each makes the rows of its own two devices, and no others.
    rows = [list(range(start, start + 6)) for start in (0, 6, 12, 18)]
    parts = [[row, [i + 24 for i in row]] for row in rows]
    assert [f.pop("made") for f in found] == [parts[:2], parts[2:]]
    # The second one finds what the first has made.
    assert [f.pop("there") for f in found] == [False, True]
    expected = {"first": [{"of": 0}, None], "in_all": [True, False, False]}
    assert found == 2 * [expected | {"sum": sum(range(48)) * 3}]
    # One of them says why they end.
    assert "Traceback" not in second.err
    assert first.err.count("Traceback") == (code == 1)
    assert (first.err + second.err).count("error: one line") == (code == 2)
    last = {1: "ZeroDivisionError: division by zero\n\n", 2: "error: one line\n"}
    assert first.err.endswith(last[code])


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "dead"), [("killed", 1), ("first killed", 0)])
def test_when_one_dies_jax_ends_the_other(tmp_path, ending, dead):
    start = time.monotonic()
    results = together(tmp_path, ending)
    assert time.monotonic() - start < 120  # in which they start, too
    assert results[dead].code == -9
    assert results[1 - dead].code == -signal.SIGABRT, results[1 - dead].err


# The second sees what a network file system may still show it: what was there before.
STALE = """
import json
from pathlib import Path
import jax, jax.numpy as jnp
from transformer.runs import cli
from transformer.runs.checkpoint_store import Store
from transformer.runs.checkpoints import Checkpoints
from transformer.system.distributed import barrier, initialize, is_first
from transformer.system.sharding import data_mesh, replicated
from transformer.training.step import TrainState

def main():
    initialize()
    make = jax.jit(
        lambda step: TrainState(step, {"kernel": jnp.full((3, 5), step)}, {"mu": jnp.ones(7)}, {}),
        out_shardings=replicated(data_mesh()),
    )
    checkpoints = Checkpoints(Path("run"), keep_last=5, best_metric="nll", direction="lower")
    for step in (11, 13):
        checkpoints.save(make(step), {"note": step}, scheduled=True)
        checkpoints.record_scores(step, {"nll": 1.5})
    barrier()
    if not is_first():
        looks, has = iter(range(3)), Store.has
        Checkpoints.steps = lambda self: [11]
        Store.record = Store.scores = lambda self, step: None
        Store.has = lambda self, step: next(looks, None) is None and has(self, step)

    def restored():
        state, notes, scores = checkpoints.restore_newest(make(0))
        return int(state.step), int(state.params["kernel"][0, 0]), notes, scores

    found = [restored()]
    if is_first():
        Path("run/checkpoints/13/record/record.json").write_text("{}")
    barrier()
    found.append(restored())
    checkpoints.save(make(13), {"note": 17}, scheduled=True)
    found.append(restored())
    Path(f"found{jax.process_index()}").write_text(json.dumps(found))

cli.run(main)
"""


@pytest.mark.slow
def test_process_0_says_what_checkpoints_there_are(tmp_path):
    (tmp_path / "stale.py").write_text(STALE)
    first, second = run_together(2 * [[tmp_path / "stale.py"]], tmp_path, slurm_variables(2))
    assert (first.code, second.code) == (0, 0), first.err + second.err
    found = [[step, step, {"note": note}, {"nll": 1.5}] for step, note in ((13, 13), (11, 11))]
    found.append([13, 13, {"note": 17}, None])
    for i in (0, 1):
        assert json.loads((tmp_path / f"found{i}").read_text()) == found
    assert "the checkpoint of step 13 is damaged" in first.err
    assert "the checkpoint of step 13 is damaged" not in second.err


# --- The scripts --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory, train=97, validation=5)
    return directory


def refused(toy: Path, arguments: Sequence[str], changed: str = "--workdir=run", **options) -> str:
    """The only line on standard error of two processes, the second of which has a flag changed."""
    command = [ROOT / "train.py", *arguments, "--workdir=run"]
    first, second = flags_of_a_job(2)
    results = run_together([[*command, *first], [*command, *second, changed]], toy, **options)
    assert [result.code for result in results] == [2, 2], results
    # On a busy machine one may have come late.
    errors = [line for r in results for line in r.err.splitlines()]
    lines = [line for line in errors if not line.startswith("waiting for the other")]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.slow
def test_what_only_process_0_sees_ends_both(toy):
    with lock_workdir(toy / "run"):
        assert "run is in use by process" in refused(toy, toy_flags())


@pytest.mark.slow
def test_processes_of_different_runs(toy):
    line = refused(toy, toy_flags(), changed="--config.model.dropout=0.3")
    assert "process 1 was given another config than process 0" in line


@pytest.mark.slow
def test_processes_that_read_different_text(toy):
    homes = [toy / "home0", toy / "home1"]  # each host has its own
    for home, size in zip(homes, (97, 101)):
        home.mkdir()
        write_toy(home, train=size, validation=5)
    files = [f"{split}_{side}" for split in ("train", "validation") for side in SIDES]
    paths = [f"~/{split}.{x}" for split in ("train", "validation") for x in ("en", "de")]
    fields = {f"data_{name}": path for name, path in zip(files, paths)}
    variables = [{"HOME": str(home)} for home in homes]
    line = refused(toy, toy_flags(**fields), variables=variables)
    assert "process 1 reads other data than process 0" in line


def test_translate_is_for_one_process(toy):
    for flags_of_one in flags_of_a_job(2):
        result = run("translate.py", "--workdir=run", *flags_of_one, cwd=toy)
        assert_refused(result, "translate.py works in one process")
