"""Seconds from `python train.py` to the end of step 1.

    python benchmarks/startup.py
    python benchmarks/startup.py --pairs 1000000 4000000 16000000 --picture=growth.png

The first starts train.py again and again, in turns with an empty cache of compiled programs (cold)
and a full one (warm), and stops it at its first line of metrics; data and tokenised text are ready.

The second starts it twice for each number of pairs: once when nothing is ready but the text, and
once when all is: tokens, tokenizer, rows of the batches, programs. The text is generated: words by
Zipf's law, 22 in the median on a side, of which 200,000 pairs are repeated. Memory is that of all
processes together at the worst moment: what is theirs, and what they have mapped of the files
(Linux says so). --picture draws it all.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import timing
from transformer.reports.pages import panels
from transformer.runs import cli
from transformer.runs.provenance import ROOT, conditions
from transformer.system.paths import argument

REPEATED = 200_000  # pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=argument, default=str(ROOT / "configs" / "demo.py"))
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--pairs", type=int, nargs="+", help="numbers of generated pairs")
    parser.add_argument("--folder", type=argument, help="where they go; else a temporary folder")
    parser.add_argument("--output", type=argument, help="a JSON file for the result")
    parser.add_argument("--picture", type=argument, help="a PNG file for the result of --pairs")
    args, overrides = parser.parse_known_args()
    config = [f"--config={args.config}", *overrides]

    with tempfile.TemporaryDirectory(dir=args.folder) as directory:
        place = Path(directory)
        if args.pairs:
            by_size = {str(pairs): of_pairs(pairs, config, place) for pairs in args.pairs}
            if args.output:
                timing.write(args.output, {"conditions": conditions(), **by_size})
            if args.picture:
                draw(by_size, Path(args.picture))
            return
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


def of_pairs(pairs: int, config: Sequence[str], place: Path) -> dict[str, float]:
    """Seconds, gigabytes of memory and of disk for a corpus of so many pairs."""
    shutil.rmtree(place / "data", ignore_errors=True)
    fields = {}
    for number, side in enumerate(("source", "target")):
        text = generated(REPEATED, seed=number)
        for split, count in (("train", pairs), ("validation", 1000)):
            fields[f"data.{split}_{side}"] = path = place / f"{split}.{side}"
            with path.open("w") as file:
                for first in range(0, count, REPEATED):
                    file.writelines(text[: count - first])
    flags = [*config, *(f"--config.{name}={path}" for name, path in fields.items())]
    found = {}
    for name, cold in (("new", True), ("ready", False)):
        own, mapped = [], []

        def watch(process: int) -> None:
            sizes = [memory_of(x) for x in (process, *children_of(process))]
            own.append(sum(x[0] for x in sizes))  # noqa: B023
            mapped.append(sum(x[1] for x in sizes))  # noqa: B023

        before = core_seconds()
        found[f"{name}_seconds"] = seconds_to_step_1(flags, place, cold, watch)
        found[f"{name}_core_seconds"] = core_seconds() - before
        found[f"{name}_memory"], found[f"{name}_mapped"] = max(own), max(mapped)
    files = {"text": place.glob("train.*"), "tokens": (place / "data").rglob("*")}
    found |= {name: sum(x.stat().st_size for x in paths) / 1e9 for name, paths in files.items()}
    print(f"{pairs:,} pairs: " + ", ".join(f"{x} {y:.3g}" for x, y in found.items()), flush=True)
    return found


def core_seconds() -> float:
    """The seconds of a core that processes of this one took, as far as they have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def draw(by_size: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Time, memory and disk against the number of pairs."""
    figure, all_axes = panels(3, columns=3, height=3.4, width=12)
    shown = {
        "seconds of a core, to step 1": ("new_core_seconds", "ready_core_seconds"),
        "gigabytes of memory": ("new_memory", "ready_memory"),
        "gigabytes on the disk": ("text", "tokens"),
    }
    for axes, (title, names) in zip(all_axes, shown.items(), strict=True):
        for name in names:
            points = [(int(x) / 1e6, found[name]) for x, found in by_size.items() if name in found]
            axes.plot(*zip(*points, strict=True), "o-", label=name.partition("_")[0])
        axes.set(title=title, xlabel="million pairs", xlim=(0, None), ylim=(0, None))
        axes.grid(color="0.9")
        axes.legend(frameon=False)
    figure.write(path, dpi=130)


def generated(count: int, seed: int) -> list[str]:
    """Lines of words by Zipf's law."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    parts = np.array(syllables)[rng.integers(len(syllables), size=(3, 40_000))]
    words = ["".join(x[: 1 + i % 3]) for i, x in enumerate(parts.T)]
    # Lengths of both sides are alike: they are drawn before the words, with one seed.
    lengths = np.random.default_rng(0).lognormal(np.log(22), 0.5, count).round().astype(int) + 1
    drawn = iter((len(words) ** rng.random(lengths.sum())).astype(int) - 1)
    return [" ".join(words[next(drawn)] for _ in range(n)) + ".\n" for n in lengths.tolist()]


def children_of(process: int) -> list[int]:
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [x for child in map(int, found) for x in (child, *children_of(child))]


def memory_of(process: int) -> tuple[float, float]:
    """Gigabytes of a process's own, and of files that it has mapped."""
    try:
        lines = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0, 0.0
    sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", lines))
    return int(sizes.get("RssAnon", 0)) * 1024 / 1e9, int(sizes.get("RssFile", 0)) * 1024 / 1e9


def seconds_to_step_1(
    config: Sequence[str],
    place: Path,
    cold: bool,
    watch: Callable[[int], None] = lambda process: None,
) -> float:
    """Starts train.py in a new work directory, and kills it at its first line of metrics.

    watch: is called again and again meanwhile, with the number of the process.
    """
    caches, workdir = place / "caches", place / "run"
    shutil.rmtree(workdir, ignore_errors=True)
    if cold:
        shutil.rmtree(caches, ignore_errors=True)
    fields = {"data.data_dir": place / "data", "training.log_every": 1}
    flags = [f"--workdir={workdir}", *(f"--config.{x}={y}" for x, y in fields.items())]
    metrics = workdir / "metrics.jsonl"
    own = {"XDG_CACHE_HOME": caches, "JAX_COMPILATION_CACHE_DIR": caches / "programs"}
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        with subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *config, *flags],
            stdout=log,
            stderr=log,
            env=os.environ | {name: str(folder) for name, folder in own.items()},
        ) as process:
            try:
                while not (metrics.exists() and metrics.stat().st_size):
                    if process.poll() is not None:
                        log.seek(0)
                        raise SystemExit(f"train.py has ended: {log.read().decode()}")
                    watch(process.pid)
                    time.sleep(0.005)
                return time.monotonic() - start
            finally:
                process.kill()


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
