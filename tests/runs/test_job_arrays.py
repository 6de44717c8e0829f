"""A sweep as a job of a cluster."""

import re
import shlex
import subprocess

import yaml

from transformer.runs.job_arrays import jobset, slurm

UNFRIENDLY = """--config.data.train_source=it's "a" $HOME $(id) $$ `id` {x} %a\\.en"""
COMMAND = ["python", "sweep.py", "--config=s.py", "--evaluate=--split=test", UNFRIENDLY]


def test_slurm(tmp_path):
    """Each task calls for its own run; a stand-in for srun prints what it is told."""
    text = slurm("it's $HOME", "runs/s 50%", ["a-0", "b=1_c-0"], COMMAND, 8)
    assert "--array=0-1%8\n" in text
    assert "mkdir -p 'runs/s 50%'\n" in text
    options = [word for line in text.splitlines() if "SBATCH" in line for word in shlex.split(line)]
    assert "--job-name=it's $HOME" in options
    assert "--output=runs/s 50%%/slurm-%a.log" in options  # a % of its own is %%
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\nexit $CODE\n')
    (tmp_path / "scontrol").write_text('#!/bin/bash\necho "$@" > requeued\n')
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)

    def task(number, code):
        return subprocess.run(
            ["bash", "-c", text],
            env={
                "PATH": f"{tmp_path}:/usr/bin:/bin",
                "SLURM_ARRAY_TASK_ID": str(number),
                "SLURM_ARRAY_JOB_ID": "77",
                "CODE": str(code),
            },
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    done = task(1, 0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*COMMAND, "--only=b=1_c-0"]
    assert task(0, 1).returncode == 1
    assert not (tmp_path / "requeued").exists()
    assert task(0, 75).returncode == 75
    assert (tmp_path / "requeued").read_text() == "requeue 77_0\n"


def test_jobset(tmp_path):
    found = yaml.safe_load(jobset("Table_3", ["a-0", "b=1_c-0"], COMMAND, 2))
    assert found["metadata"]["name"] == "table-3"
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["completions"], job["parallelism"]) == (2, 2)
    (container,) = job["template"]["spec"]["containers"]
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        # As Kubernetes does, which would also replace $(id).
        [*container["command"], container["args"][0].replace("$$", "$")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [*COMMAND[1:], "--only=b=1_c-0"]
    assert "$$(id) $$$$ " in container["args"][0]


def test_names_that_kubernetes_takes():
    """A letter first, and room for what the names of pods add (RFC 1035: 63 in all)."""
    given = ["3", "-a-", "_", "a.b", "a b", "é", "文", "x" * 41, "x" * 200, "a" * 30 + "-" * 30]
    found = [yaml.safe_load(jobset(name, ["a-0"], [], 1))["metadata"]["name"] for name in given]
    assert all(re.fullmatch("[a-z]([a-z0-9-]{0,43}[a-z0-9])?", name) for name in found), found
    assert len(set(found)) == len(given)
