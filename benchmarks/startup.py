"""Seconds from `python train.py` to the end of step 1, and what huge pages do to a step.

    python benchmarks/startup.py

Starts train.py again and again, in turns with an empty cache of compiled programs (cold) and a
full one (warm), and stops it at its first line of metrics; data and tokenised text are ready.
Then times steps with transformer/system/startup.py's huge pages and without, in turns as well.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import timing
from transformer.runs import cli
from transformer.runs.provenance import ROOT, conditions
from transformer.system.paths import argument


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=argument, default=str(ROOT / "configs" / "demo.py"))
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--steps", type=int, default=20, help="a measurement of the step's time")
    parser.add_argument("--output", type=argument, help="a JSON file for the result")
    args, overrides = parser.parse_known_args()
    config = [f"--config={args.config}", *overrides]

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        seconds_to_step_1(config, place, cold=True)  # prepares the data
        starts = timing.alternate(
            {
                "cold": lambda: seconds_to_step_1(config, place, cold=True),
                "warm": lambda: seconds_to_step_1(config, place, cold=False),
            },
            args.rounds,
        )
        flags = [*config, f"--steps={args.steps}"]
        steps = timing.alternate(
            {
                "huge pages": lambda: seconds_a_step(flags, place, "glibc.malloc.hugetlb=1"),
                # Set, even to nothing, it keeps the scripts from starting anew.
                "usual pages": lambda: seconds_a_step(flags, place, ""),
            },
            args.rounds,
        )
    print("Seconds from the start of train.py to the end of step 1:")
    for name, values in starts.items():
        print(f"{name:12} {timing.shown(values, unit=1)}")
    print("Milliseconds a step (medians of processes):")
    for name, values in steps.items():
        print(f"{name:12} {timing.shown(values)}")
    ratios = [h / u for h, u in zip(steps["huge pages"], steps["usual pages"], strict=True)]
    print(f"{'ratio':12} {timing.shown(ratios, unit=1)}")
    if args.output:
        result = {
            "conditions": conditions(),
            "seconds_to_step_1": {k: timing.summary(v) for k, v in starts.items()},
            "seconds_per_step": {k: timing.summary(v) for k, v in steps.items()},
            "huge_over_usual_pages": timing.summary(ratios),
        }
        timing.write(args.output, result)


def seconds_to_step_1(config: Sequence[str], place: Path, cold: bool) -> float:
    """Starts train.py in a new work directory, and kills it at its first line of metrics."""
    cache, workdir = place / "cache", place / "run"
    shutil.rmtree(workdir, ignore_errors=True)
    if cold:
        shutil.rmtree(cache, ignore_errors=True)
    flags = [f"--workdir={workdir}", f"--config.data.data_dir={place / 'data'}"]
    flags += ["--config.training.log_every=1"]
    metrics = workdir / "metrics.jsonl"
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        with subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *config, *flags],
            stdout=log,
            stderr=log,
            env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        ) as process:
            try:
                while not (metrics.exists() and metrics.stat().st_size):
                    if process.poll() is not None:
                        log.seek(0)
                        raise SystemExit(f"train.py has ended: {log.read().decode()}")
                    time.sleep(0.005)
                return time.monotonic() - start
            finally:
                process.kill()


def seconds_a_step(flags: Sequence[str], place: Path, tunables: str) -> float:
    """The median time of a step in a process of its own."""
    environment = {"GLIBC_TUNABLES": tunables, "JAX_COMPILATION_CACHE_DIR": str(place / "cache")}
    try:
        result = timing.run_benchmark("training_speed.py", flags, environment)
    except timing.Failed as failure:
        raise SystemExit(f"training_speed.py: {failure}; its error is above") from None
    return result["step_seconds"]["median"]


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
