"""Timings that alternate, and what must stand beside them.

A machine's speed drifts with its temperature and its other users. Measurements that take turns
share the drift, so that their ratio keeps its meaning where their seconds do not.
"""

import contextlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.runs.provenance import ROOT
from transformer.system.files import write_named

SECONDS_BETWEEN = 0.5  # threads of the measurement before may spin for a while


def summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def shown(values: Sequence[float], unit: float = 1e-3) -> str:
    """Median and range, such as "3021.4 [2988.0 .. 3134.2]"; unit=1e-3 shows seconds as ms."""
    median, low, high = (x / unit for x in (statistics.median(values), min(values), max(values)))
    return f"{median:.4g} [{low:.4g} .. {high:.4g}]"


class Failed(Exception):
    """A process that was started here has failed; the message says how, its own output why."""


def run_benchmark(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs a script of this folder that has an --output flag; returns the result it writes.

    Only its standard error is seen. Raises Failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, ROOT / "benchmarks" / script, *arguments, f"--output={output}"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise Failed(f"exit code {done.returncode}")
        return json.loads(output.read_text())


class Worker:
    """A process that prepares something and then measures it whenever it is asked to.

    A process each, since the thread pools of two libraries in one disturb each other. `about`
    is what it said about what it prepared. The other end is `serve`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.about: dict[str, Any] = self._read()

    def measure(self) -> Any:
        with contextlib.suppress(BrokenPipeError):  # it has died; the answer says so
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise Failed(f"exit code {self._process.returncode}")
        return json.loads(line)


def serve(prepare: Callable[[], tuple[dict[str, Any], Callable[[], Any]]]) -> None:
    """The worker's side: `prepare()` returns what to say about itself and how to measure."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the libraries print is no reply
    about, measure = prepare()
    print(json.dumps(about), file=replies)
    for _ in sys.stdin:
        print(json.dumps(measure()), file=replies)


def contest(measurements: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Takes each measurement, of seconds, once a round, in turn; the seconds, and over the first's.

    The ratios are those of each round.
    """
    times = {name: [] for name in measurements}
    for number in range(1, rounds + 1):
        for name, measure in measurements.items():
            time.sleep(SECONDS_BETWEEN)
            times[name].append(measure())
        newest = ", ".join(f"{name} {seconds[-1]:.4g} s" for name, seconds in times.items())
        print(f"round {number} of {rounds}: {newest}", file=sys.stderr)
    first = next(iter(times.values()))
    return {
        name: {
            "seconds": summary(values),
            "over_first": summary([a / b for a, b in zip(values, first, strict=True)]),
        }
        for name, values in times.items()
    }


def race(
    names: Sequence[str], rounds: int, flags: Sequence[str] = (), **environment: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """A contest of processes of this script, each with --worker=NAME and these flags.

    Returns what each is about, its rows of `contest` and its "replies"; and how others failed. The
    first must not.
    """
    workers, failed, replies = {}, {}, {name: [] for name in names}
    for name in names:
        try:
            workers[name] = Worker(
                [sys.executable, *sys.argv, *flags, f"--worker={name}"], environment
            )
        except Failed as failure:
            failed[name] = str(failure)
            print(f"{name} cannot be measured: {failure}; its error is above", file=sys.stderr)
            if not workers:
                raise SystemExit(1) from None

    def measure(name: str) -> float:
        replies[name].append(workers[name].measure())
        return replies[name][-1]["seconds"]

    try:
        found = contest({name: lambda name=name: measure(name) for name in workers}, rounds)
    except Failed as failure:
        print(f"a worker has ended: {failure}; its error is above", file=sys.stderr)
        raise SystemExit(1) from None
    for name, worker in workers.items():
        worker.close()
        found[name] |= worker.about | {"replies": replies[name]}
    return found, failed


def peak_memory() -> int:
    """The most main memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def seconds_of(function: Callable[[], Any], times: int, limit: float = math.inf) -> list[float]:
    """The seconds of so many calls; of fewer, but at least one, where `limit` seconds are over."""
    values, start = [], time.perf_counter()
    while not values or (len(values) < times and time.perf_counter() - start < limit):
        before = time.perf_counter()
        function()
        values.append(time.perf_counter() - before)
    return values


def median_of(function: Callable[[], Any], times: int = 4, limit: float = math.inf) -> float:
    """The median of `seconds_of`, without the first if there are more."""
    seconds = seconds_of(function, times, limit)
    return statistics.median(seconds[1:] or seconds)


def repeat_for_a_second(step: Callable[[], None], finish: Callable[[], None]):
    """A measurement: seconds a step, over as many steps as take a second, but at least one.

    `finish` waits for the device; only the last of the steps does. A step before them is not
    measured: it brings back what others pushed out of caches and memory.
    """

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        finish()
        return (time.perf_counter() - start) / steps

    def measure() -> dict[str, float]:
        seconds(1)
        return {"seconds": seconds(steps)}

    seconds(1)
    steps = max(1, round(1 / seconds(1)))
    return measure


def write(path: str | Path, result: Mapping[str, Any]) -> None:
    write_named(Path(path), json.dumps(result, indent=2) + "\n")
