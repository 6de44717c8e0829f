"""The scripts as a user runs them, on a toy language, and what they leave behind."""

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.runs import run_config
from transformer.runs.checkpoints import Checkpoints
from transformer.system.sharding import data_mesh, replicated
from transformer.training.schedules import make_schedule
from transformer.training.step import TrainState, init_state

ROOT = Path(__file__).parent.parent
TIMES = {"input/wait_ms", "total/seconds", "train/tokens_per_second", "train/mfu"}

# Importing JAX takes seconds. So one process does it, and runs each command in a fork.
SERVER = """
import atexit, gc, json, os, runpy, sys, threading, traceback
# Nearly everything that the commands import; it starts no backend of JAX.
from transformer.exports import workdir
from transformer.inference import formats, model, output
from transformer.reports import ledger, plots, recipes, run_report
from transformer.runs import cli, run_config, train
run_config.type_of_field("model")  # of all tasks and families
gc.freeze()

for line in sys.stdin:
    job = json.loads(line)
    if (pid := os.fork()) == 0:
        for fd, (name, mode) in enumerate(job["files"]):
            os.dup2(os.open(name, mode), fd)
        os.chdir(job["cwd"])
        sys.argv = job["argv"]
        if not job["pictures"]:
            run_report.write = plots.learning_curve = lambda *_: None
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        # What follows in Python's own end: libraries that wait two seconds for threads which a
        # fork does not have.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@functools.cache
def environment() -> dict[str, str]:
    """Environment variables of the scripts."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return {
        "GLIBC_TUNABLES": "",  # so that the scripts do not start anew
        # Compiling takes longest.
        "JAX_COMPILATION_CACHE_DIR": os.environ["COMPILED_BY_TESTS"],
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "SACREBLEU": f"{folder.name}/sacrebleu",  # where it keeps test sets
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
    }


class Result(NamedTuple):
    code: int
    out: bytes
    err: str


@functools.cache
def server() -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment(),
    )
    atexit.register(process.communicate)
    return process


def words_of(script: str | Path) -> list[str | Path]:
    """The words after `python` that run a script, or a command such as report, anywhere."""
    is_file = Path(script).suffix == ".py"
    return [ROOT / script] if is_file else [ROOT / "transformer", script]


def run(
    script: str,
    *arguments: str,
    cwd: Path,
    stdin: bytes | Path = b"",
    stdout: Path | None = None,
    pictures: bool = False,
) -> Result:
    """As `python <script> <arguments>` in the directory `cwd`, or the command of that name.

    stdin: its content; or a pipe or a terminal, as `stdout`.
    pictures: whether a run draws its curves and writes its report, which takes seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        names = [os.path.join(directory, name) for name in ("stdin", "stdout", "stderr")]
        if isinstance(stdin, bytes):
            Path(names[0]).write_bytes(stdin)
        else:
            names[:2] = map(str, (stdin, stdout))
        modes = [os.O_RDONLY] + 2 * [os.O_CREAT | os.O_WRONLY | os.O_APPEND]
        job = {
            "argv": [*map(str, words_of(script)), *map(str, arguments)],
            "cwd": str(cwd),
            "pictures": pictures,
            "files": list(zip(names, modes)),
        }
        server().stdin.write(json.dumps(job).encode() + b"\n")
        server().stdin.flush()
        code = int(server().stdout.readline())
        out = b"" if stdout else Path(names[1]).read_bytes()
        return Result(code, out, Path(names[2]).read_text())


def assert_refused(result: Result, *parts: str) -> None:
    assert "Traceback" not in result.err
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("error: ")
    for part in parts:
        assert part in result.err
    assert result.code == 2


SIDES = "source", "target"
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def write_toy(directory: Path, **sizes: int) -> None:
    """Numbers in two languages: train.en, train.de and so on."""
    for split, size in sizes.items():
        lines = [[WORDS[i // k % 8] for k in (1, 3, 7, 11)[: 1 + i % 4]] for i in range(size)]
        (directory / f"{split}.en").write_text("".join(" ".join(x) + "\n" for x in lines))
        other = [[word[::-1].capitalize() for word in words] for words in lines]
        (directory / f"{split}.de").write_text("".join(" ".join(x) + "\n" for x in other))


def toy_fields(**changes) -> dict[str, Any]:
    """The fields of a small run on the files of `write_toy`."""
    fields = {
        "data.train_source": "train.en",
        "data.train_target": "train.de",
        "data.validation_source": "validation.en",
        "data.validation_target": "validation.de",
        "data.data_dir": "data",
        "data.max_source_length": 31,
        "data.max_target_length": 31,
        "tokenizer.vocab_size": 300,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 14,
        "model.d_ff": 11,
        "model.num_heads": 2,
        "optimizer.warmup_steps": 7,
        "training.tokens_per_update": 5 * 31,
        "training.steps": 2,
        "training.log_every": 1,
        "training.checkpoint_every": 1,
        "training.full_validation_every": 0,
        "training.best_metric": "nll",
        "decoding.max_extra_length": 3,
    }
    return fields | {name.replace("_", ".", 1): value for name, value in changes.items()}


def toy_flags(**changes) -> list[str]:
    """The flags of that run."""
    values = [f"--config.{name}={value}" for name, value in toy_fields(**changes).items()]
    return [f"--config={ROOT / 'configs' / 'base.py'}", *values]


def succeeded(result: Result) -> Result:
    assert result.code == 0, result.err
    assert "Traceback" not in result.err
    return result


def metrics(workdir: Path) -> list[dict[str, float]]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def final_state(workdir: Path) -> TrainState:
    config = run_config.load(workdir)
    model = config.kind.restore(config, workdir).model
    schedule = make_schedule(config.optimizer, config.model.width)
    adam = config.kind.make_optimizer(config, schedule)
    state = jax.eval_shape(lambda: init_state(model, adam, seed=0))
    sharding = replicated(data_mesh(jax.devices()[:1]))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
    checkpoints = Checkpoints(
        workdir, keep_last=1, best_metric="nll", direction="lower", read_only=True
    )
    with contextlib.closing(checkpoints):
        return checkpoints.restore_newest(like).state


def assert_same_params(a, b):
    for x, y in zip(*(jax.tree.leaves(model.params) for model in (a, b)), strict=True):
        np.testing.assert_array_equal(x, y)
