"""All that is asked of a GPU, in ten minutes; each figure is printed as soon as it is there.

    python benchmarks/gpu.py --output=gpu.json --multi30k=FOLDER
    python benchmarks/gpu.py --parts queue --queue=trainings.txt --seconds=3600

The parts, in order. What fails, or takes longer than its share, is named, and the next one runs.

    speed     the fast kernels that agree with the plain form here; base and big with these, and
              with plain kernels: ms an update, MFU
    pytorch   base beside PyTorch, eager and compiled, in turns
    where     where the time of base's update goes, beside the bound of each kind of work
    decoding  base translates with a beam of 4; and the bound of such a search
    resume    whether a run that was stopped ends with the parameters of one that was not: as runs
              usually are, and with XLA's deterministic operations
    multi30k  multi30k_tiny in bfloat16: BLEU of validation, and a warning for each bad update
    queue     a file of trainings, a line "train.py --config=... --workdir=..." each; those that
              are stopped continue when the file is given again
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

from benchmarks import timing
from transformer.data.text_files import read_lines
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.runs.restore import restore
from transformer.system.errors import UserError
from transformer.system.paths import argument

BFLOAT16, PLAIN = "--config.model.dtype=bfloat16", "--config.model.kernels=plain"
DETERMINISTIC = "--xla_gpu_deterministic_ops=true --xla_gpu_exclude_nondeterministic_ops=true"
TINY = [f"--config.model.{x}" for x in ("d_model=16", "d_ff=11", "num_heads=2")]
TINY += [f"--config.model.num_{side}_layers=1" for side in ("encoder", "decoder")]
TINY_DATA = [f"--config.data.max_{side}_length=32" for side in ("source", "target")]
TINY_DATA += ["--config.tokenizer.vocab_size=300", "--config.training.tokens_per_update=160"]
PARTS = "speed", "pytorch", "where", "decoding", "resume", "multi30k", "queue"
GRACE = 30  # seconds for a run that is told to stop, which saves


class Part(NamedTuple):
    """Scripts with their flags, one after another."""

    seconds: float  # for all of them
    commands: list[list[str]]
    xla_flags: str = ""


def parts(args: argparse.Namespace, folder: Path) -> dict[str, Part]:
    toy, trace, size = args.toy, str(folder / "trace"), [*TINY, *TINY_DATA] if args.toy else []

    def speed(config: str, *flags: str) -> list[str]:
        about = f"--config=configs/{config}.py", f"--steps={5 if toy else 30}", BFLOAT16
        return ["benchmarks/training_speed.py", *about, *size, *flags]

    batch = {"rows": 3, "length": 8, "vocab_size": 97} if toy else {"rows": 97, "length": 256}
    batch = {"dtype": "bfloat16", "rounds": 3, "vocab_size": 37_000, **batch}
    pytorch = ["benchmarks/versus_pytorch.py", *(f"--{x}={y}" for x, y in batch.items())]
    number = f"--sentences={3 if toy else 256}"
    search = ["benchmarks/decoding_speed.py", "--engines=ours_bfloat16", "--rounds=3", number]
    bound = ["benchmarks/estimate.py", "--program=search", "--length=48", "--steps=27", number]
    bound += [f"--device={'cpu' if toy else 'h200'}", BFLOAT16, *size]
    steps = dict.fromkeys(("checkpoint_every", "full_validation_every"), 1 if toy else 500)
    steps["steps"] = 3 * steps["checkpoint_every"]
    multi30k = ["train.py", "--config=configs/multi30k_tiny.py", BFLOAT16, *TINY * toy]
    multi30k += [f"--config.data.data_dir={folder}", f"--workdir={folder / 'multi30k'}"]
    multi30k += [f"--config.training.{x}={y}" for x, y in steps.items()]
    multi30k += [f"--config.data.raw_dir={args.multi30k}"] if args.multi30k else []
    queue = []
    for line_number, line in enumerate(read_lines(args.queue) if args.queue else [], 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UserError(f"{args.queue}: line {line_number}: {error}: {line!r}") from error
        queue += [words[words[0] == "python" :]] if words else []
    found = {
        "speed": Part(240, [speed(x, *flag) for x in ("base", "big") for flag in ([], [PLAIN])]),
        "pytorch": Part(120, [pytorch + TINY * toy]),
        "where": Part(
            90,
            [speed("base", f"--profile={trace}"), ["benchmarks/profile_summary.py", trace]],
            "" if toy else "--xla_gpu_enable_command_buffer=",  # a trace shows no graph's kernels
        ),
        "decoding": Part(120, [[*search, *["--vocab_size=97", "--tokens=4", *TINY] * toy], bound]),
        "resume": Part(180, [["benchmarks/gpu.py", "--resume", *["--toy"] * toy]]),
        "multi30k": Part(150, [multi30k]),
        "queue": Part(args.seconds, queue),
    }
    return {x: part._replace(seconds=args.seconds) for x, part in found.items()} if toy else found


def run(part: Part, seconds: float, folder: Path) -> dict[str, Any]:
    """Shows what the scripts print while they run; returns that, and what went wrong."""
    found: dict[str, Any] = {"printed": [], "failed": []}
    start, seconds = time.monotonic(), min(part.seconds, seconds)
    environment = {"PYTHONUNBUFFERED": "1", "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    environment |= {"XLA_FLAGS": part.xla_flags} if part.xla_flags else {}
    for command in part.commands:
        left, why = seconds - (time.monotonic() - start), "no time is left"
        if left > 0:
            with subprocess.Popen(
                [sys.executable, *command],
                **{"cwd": ROOT, "env": os.environ | environment, "text": True},
                **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
            ) as process:
                ends = {left: process.terminate, left + GRACE: process.kill}
                timers = [threading.Timer(*end) for end in ends.items()]
                for timer in timers:
                    timer.daemon = True
                    timer.start()
                for line in process.stdout:
                    print(line, end="", flush=True)
                    found["printed"].append(line.rstrip())
            for timer in timers:
                timer.cancel()
            why = f"exit code {process.returncode}" if process.returncode else ""
            why += ", when its time was over" if why and time.monotonic() - start > seconds else ""
        if why:
            found["failed"].append(f"{shlex.join(command)}: {why}")
            print(f"FAILED  {found['failed'][-1]}", flush=True)
    return found | {"seconds": time.monotonic() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=argument, help="a JSON file for all that is printed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them")
    parser.add_argument("--seconds", type=float, default=600, help="for all parts together")
    parser.add_argument("--multi30k", type=argument, help="its tokenised text; else downloaded")
    parser.add_argument("--queue", type=argument, help="a file of trainings")
    parser.add_argument("--toy", action="store_true", help="tiny models and data, for any machine")
    parser.add_argument("--resume", action="store_true", help="used by this script itself")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.resume:
            return try_resume(args.toy, Path(folder))
        possible = parts(args, Path(folder))
        end, result = time.monotonic() + args.seconds, {}
        for name in args.parts:
            print(f"\n== {name}, {end - time.monotonic():.0f} s left", flush=True)
            result[name] = run(possible[name], end - time.monotonic(), Path(folder))
            if args.output:
                timing.write(args.output, result)
    failed = [name for name, found in result.items() if found["failed"]]
    print(f"\n{len(result) - len(failed)} of {len(result)} parts are done", end="")
    print(f"; not {', '.join(failed)}" if failed else "")
    sys.exit(1 if failed else 0)


def try_resume(toy: bool, folder: Path) -> None:
    """Trains base, or a part of it, on random words."""
    jax.config.update("jax_platforms", "cpu")  # the GPU is train.py's
    rng, fields = random.Random(0), {"data.data_dir": folder, "training.best_metric": "nll"}
    for name, lines in {"train": 20_000, "validation": 50}.items():
        for side in ("source", "target"):
            fields[f"data.{name}_{side}"] = path = folder / f"{name}.{side}"
            words = (rng.choices("abcdefghijklmnop", k=rng.randint(3, 30)) for _ in range(lines))
            path.write_text("".join(" ".join(line) + "\n" for line in words))
    fields |= {"training.checkpoint_every": 4, "training.full_validation_every": 0}
    command = [sys.executable, "train.py", "--config=configs/base.py", BFLOAT16]
    command += [*[*TINY, *TINY_DATA] * toy, "--config.tokenizer.vocab_size=280"]
    command += [f"--config.{x}={y}" for x, y in fields.items()]
    for kind, xla_flags in {"usual": "", "deterministic": DETERMINISTIC}.items():
        environment = os.environ | ({"XLA_FLAGS": xla_flags} if xla_flags and not toy else {})
        params = {}
        for name, stops in {"whole": [8], "stopped": [4, 8]}.items():
            workdir = folder / kind / name
            for steps in stops:
                flags = [f"--workdir={workdir}", f"--config.training.steps={steps}"]
                subprocess.run([*command, *flags], cwd=ROOT, env=environment, check=True)
            params[name] = jax.tree.leaves(restore(workdir, "last", trust_paths=True).params)
        number = sum(bool(np.any(a != b)) for a, b in zip(*params.values(), strict=True))
        print(f"resume, {kind}: {number} of {len(params['whole'])} arrays differ", flush=True)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
