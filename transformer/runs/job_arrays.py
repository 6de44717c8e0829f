"""A sweep as a cluster job: one task a run, each of which calls sweep.py for its run."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from transformer.system.errors import UserError
from transformer.system.files import write_named

_SLURM = """\
#!/bin/bash
# What each run needs, and its queue, are yours to fill in. Start it with sbatch; Slurm makes no
# folders, and without that of the logs the tasks fail at once: mkdir -p {folder}
#SBATCH --job-name={name} --array=0-{last}%{together}
#SBATCH --ntasks=1 --gpus-per-task=1 --cpus-per-task=8 --time=24:00:00
#SBATCH --signal=TERM@120 --requeue --open-mode=append --output={log}
runs=({runs})
srun {command} --only="${{runs[$SLURM_ARRAY_TASK_ID]}}" || {{
  code=$?
  [ $code = 75 ] && scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
  exit $code
}}
"""


def slurm(name: str, out: str, runs: Sequence[str], command: Sequence[str], together: int) -> str:
    """A script for sbatch; a task that is told to stop requeues itself.

    out: the folder for logs. command: the sweep's command. together: the most tasks to run at once.
    """
    return _SLURM.format(
        name=shlex.quote(name),
        last=len(runs) - 1,
        together=together,
        log=shlex.quote(f"{out.replace('%', '%%')}/slurm-%a.log"),
        folder=shlex.quote(out),
        runs="\n  ".join(["", *map(shlex.quote, runs)]) + "\n",
        command=shlex.join(command),
    )


def jobset(name: str, runs: Sequence[str], command: Sequence[str], together: int) -> str:
    """The YAML of a Kubernetes JobSet; pods that exit with code 75 are restarted.

    The user fills in image, resources and the claim of the shared disk.
    """
    script = f'set -- {shlex.join(runs)}; shift "$JOB_COMPLETION_INDEX"; '
    # Kubernetes expands $(NAME), and turns $$ into $.
    script += f'exec {shlex.join(command).replace("$", "$$")} --only="$1"'
    container = {
        "name": "run",
        "image": "REGISTRY/transformer",
        "command": ["sh", "-c"],
        "args": [script],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 120,
        "containers": [container],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    }
    on_stop = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}}
    job = {
        "completionMode": "Indexed",
        "completions": len(runs),
        "parallelism": together,
        # A failed run does not end the others.
        "backoffLimitPerIndex": 0,
        "podFailurePolicy": {"rules": [on_stop]},
        "template": {"spec": pod},
    }
    replicated = {"name": "run", "replicas": 1, "template": {"spec": job}}
    content = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": _label(name)},
        "spec": {"replicatedJobs": [replicated]},
    }
    return yaml.safe_dump(content, sort_keys=False, width=100)


def _label(name: str) -> str:
    """A name that Kubernetes accepts; one that loses more than capitals and _ gets a hash."""
    label = name.lower().replace("_", "-")
    # A pod's name has at most 63 characters, including a suffix such as -run-0-99999-abcde.
    if re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", label):
        return label
    kept = re.sub("[^a-z0-9]+", "-", label).strip("-")
    kept = kept if kept[:1].isalpha() else f"sweep-{kept}"
    return f"{kept[:31].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def write(
    name: str,
    out: str,
    runs: Sequence[str],
    argv: Sequence[str],
    together: int | None,
    slurm_file: str | None,
    jobset_file: str | None,
) -> None:
    """Writes the named files; each of their tasks calls the script of argv for one run."""
    own = re.compile("--?(slurm|jobset|only|together)(=|$)")
    if bad := [word for word in argv[1:] if not re.match("--?[^=]+=", word)]:
        raise UserError(f"{bad[0]!r}: with --slurm and --jobset give each flag as --name=value")
    command = ["python", *(word for word in argv if not own.match(word))]
    together = together or len(runs)
    if slurm_file:
        write_named(Path(slurm_file), slurm(name, out, runs, command, together))
        start = f"mkdir -p {shlex.quote(out)} && sbatch {shlex.quote(slurm_file)}"
        print(f"written  {slurm_file}: {len(runs)} tasks; {start}")
    if jobset_file:
        write_named(Path(jobset_file), jobset(name, runs, command, together))
        start = f"kubectl apply -f {shlex.quote(jobset_file)}"
        print(f"written  {jobset_file}: {len(runs)} pods; {start}")
