"""Runs whose work directory is in an emulated bucket: killed, cut off, and of several processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulators import BUCKET, Door, emulated
from processes import flags_of_a_job, on_devices
from scripts import ROOT, TIMES, metrics, run, succeeded, toy_flags, write_toy

pytestmark = pytest.mark.slow
PATIENCE = 600.0  # seconds for a process, on a busy machine
UPLOADED = "(PUT|POST) .*/"  # what a killed run left half-written is deleted by the next one
FLAGS = {
    "training_steps": 12,
    "training_log_every": 3,
    "training_checkpoint_every": 3,
    "training_keep_last": 4,  # all: what is removed before its turn is never uploaded
    "model_dropout": 0.2,
}


@contextlib.contextmanager
def started(
    door: Door, folder: Path, script: str, *arguments: str, disk: str = "cache"
) -> Iterator[subprocess.Popen]:
    """A script with the bucket; disk: the folder that is its host's own."""
    env = on_devices(1) | door.env | {"XDG_CACHE_HOME": str(folder / disk)}
    words = [sys.executable, ROOT / script, *arguments]
    process = subprocess.Popen(words, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


OBJECTS = """
import json, sys
from transformer.system import buckets
files = buckets.system(sys.argv[1])
found = {name.partition("/")[2]: files.cat_file(name) for name in files.find(sys.argv[2])}
print(json.dumps({name: content.decode("latin1") for name, content in found.items()}))
"""


def objects(door: Door, scheme: str) -> dict[str, bytes]:
    """What is in the bucket, by name."""
    words = [sys.executable, "-c", OBJECTS, f"{scheme}://{BUCKET}", BUCKET]
    found = subprocess.run(words, cwd=ROOT, env=os.environ | door.env, capture_output=True)
    assert found.returncode == 0, found.stderr
    return {name: x.encode("latin1") for name, x in json.loads(found.stdout).items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("buckets")
    write_toy(directory, train=97, validation=5)
    succeeded(run("train.py", *toy_flags(**FLAGS), "--workdir=whole", cwd=directory))
    return directory / "whole"


@pytest.mark.parametrize(
    ("scheme", "moments"),
    [
        ("gs", {3: "opt_state", 6: "record/record.json", 9: "params"}),
        ("s3", {6: "params"}),
    ],
)
def test_a_run_that_is_killed_and_cut_off_is_one_run(scheme, moments, uninterrupted):
    folder, workdir = uninterrupted.parent, f"--workdir={scheme}://{BUCKET}/run"
    with emulated(scheme) as door:
        for steps, item in moments.items():  # no further, so that no later upload is on its way
            flags = toy_flags(**FLAGS | {"training_steps": steps})
            door.pause_at = f"{UPLOADED}{steps}/{item}"
            with started(door, folder, "train.py", *flags, workdir) as process:
                door.wait_for(process)
                process.send_signal(signal.SIGKILL)
        # The connection is lost for a while, in which training goes on.
        door.pause_at = UPLOADED + "12/params"
        with started(door, folder, "train.py", *toy_flags(**FLAGS), workdir) as process:
            door.wait_for(process)
            door.shut.set()
            door.go_on.set()
            said = ""
            for line in process.stderr:
                said += line
                if "the work goes on, and the next checkpoint tries again" in line:
                    door.shut.clear()
            assert process.wait() == 0, said
        assert "Traceback" not in said
        assert f"warning: cannot write {scheme}://{BUCKET}/run/" in said
        found = objects(door, scheme)
    lines = found["run/metrics.jsonl"].decode().splitlines()
    mine = [{k: v for k, v in json.loads(x).items() if k not in TIMES} for x in lines]
    assert mine == metrics(uninterrupted)
    record = "checkpoints/12/record/record.json"
    assert found[f"run/{record}"] == (uninterrupted / record).read_bytes()
    kept = {path.name for path in (uninterrupted / "checkpoints").iterdir()}
    # The record of an earlier one may have been on its way when the process was killed.
    assert {"12"} <= {x.split("/")[2] for x in found if "checkpoints/" in x} <= kept
    assert {"run/report.html", "run/learning_curve.png"} <= found.keys()
    assert "run/lock" not in found


def test_the_processes_of_a_job_need_no_common_disk(tmp_path):
    write_toy(tmp_path, train=97, validation=5)
    names = {"train_source": "train.en", "train_target": "train.de"}
    names |= {"validation_source": "validation.en", "validation_target": "validation.de"}
    places = {f"data_{field}": f"gs://{BUCKET}/{name}" for field, name in names.items()}
    places["data_data_dir"] = f"gs://{BUCKET}/data"
    flags = toy_flags(training_steps=2, mesh_fsdp=2, **places)
    with emulated("gs") as door, contextlib.ExitStack() as stack:
        for name in names.values():
            door.put(name, (tmp_path / name).read_bytes())
            (tmp_path / name).unlink()
        workdir = f"--workdir=gs://{BUCKET}/run"
        processes = [
            stack.enter_context(
                started(door, tmp_path, "train.py", *flags, workdir, *job, disk=f"disk{number}")
            )
            for number, job in enumerate(flags_of_a_job(2))
        ]
        for process in processes:
            assert process.wait(PATIENCE) == 0, process.stderr.read()
        # The digest of the arrays that were spread over both is that of what is read now.
        more = "--config.mesh.fsdp=1", "--config.training.steps=3"
        with started(door, tmp_path, "train.py", workdir, *more) as process:
            assert process.wait(PATIENCE) == 0, process.stderr.read()
        found = objects(door, "gs")
    steps = {json.loads(x)["step"] for x in found["run/metrics.jsonl"].splitlines()}
    assert steps == {1, 2, 3}
    assert len([name for name in found if re.fullmatch("data/token_cache/.*/meta.json", name)]) == 2


@pytest.mark.parametrize(
    ("address", "env", "part"),
    [
        (f"s3://{BUCKET}x/run", {}, "there is no such bucket"),
        (f"s3://{BUCKET}/run", {"AWS_ENDPOINT_URL": "http://localhost:1"}, "connect"),
        (
            f"s3://{BUCKET}/run",
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "credentials",
        ),
    ],
)
def test_what_cannot_be_reached_is_one_line(address, env, part, tmp_path):
    with emulated("s3") as door:
        door.env |= env | {"HOME": str(tmp_path)}
        with started(door, tmp_path, "translate.py", f"--workdir={address}") as process:
            assert process.wait(PATIENCE) == 2
            said = process.stderr.read()
    assert said.count("\n") == 1
    assert said.startswith(f"error: cannot read {address}: ")
    assert part in said
