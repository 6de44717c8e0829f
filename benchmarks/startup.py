"""Seconds from `python train.py` to the end of step 1.

    python benchmarks/startup.py

Starts train.py again and again, in turns with an empty cache of compiled programs (cold) and a
full one (warm), and stops it at its first line of metrics; data and tokenised text are ready.
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
    parser.add_argument("--output", type=argument, help="a JSON file for the result")
    args, overrides = parser.parse_known_args()
    config = [f"--config={args.config}", *overrides]

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        seconds_to_step_1(config, place, cold=True)  # prepares the data
        starts = {
            "cold": lambda: seconds_to_step_1(config, place, cold=True),
            "warm": lambda: seconds_to_step_1(config, place, cold=False),
        }
        found = timing.contest(starts, args.rounds)
    print(f"{'seconds to the end of step 1':57} {'over the first':^24}")
    for name, row in found.items():
        seconds, ratios = (timing.shown(x["values"], unit=1) for x in row.values())
        print(f"  {name:28} {seconds:^28} {ratios:^24}")
    if args.output:
        timing.write(args.output, {"conditions": conditions(), **found})


def seconds_to_step_1(config: Sequence[str], place: Path, cold: bool) -> float:
    """Starts train.py in a new work directory, and kills it at its first line of metrics."""
    cache, workdir = place / "cache", place / "run"
    shutil.rmtree(workdir, ignore_errors=True)
    if cold:
        shutil.rmtree(cache, ignore_errors=True)
    fields = {"data.data_dir": place / "data", "training.log_every": 1}
    flags = [f"--workdir={workdir}", *(f"--config.{x}={y}" for x, y in fields.items())]
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


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
