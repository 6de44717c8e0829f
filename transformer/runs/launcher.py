"""The runs of a sweep: trains and evaluates each, in turn or several at once.

Every run is a process of train.py, then one of evaluate.py. WORKDIR/sweep.json marks a finished
run, which is not started again.
"""

import contextlib
import hashlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from transformer.runs import history
from transformer.runs.sweep import Run
from transformer.system.commands import NAME, ROOT, script
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.reading import MISSING, read_json
from transformer.system.startup import STOPPED, stop_signals

DONE = "sweep.json"


class Options(NamedTuple):
    """Options for making the runs of a sweep.

    out: the folder of their work directories. flags: more flags of train.py. evaluate: flags of
    evaluate.py, or "none". results: the ledger's folder; None to record nothing. together: the
    number of runs at once. gpus: names of GPUs, each for one run at a time.
    """

    out: Path
    flags: Sequence[str] = ()
    evaluate: str = "--split=test"
    results: Path | None = None
    together: int = 1
    gpus: Sequence[str] = ()


class Launcher:
    """Runs a sweep to its end. It passes a stop signal to its processes, which save and exit."""

    def __init__(self, options: Options):
        self.options = options
        try:
            self._evaluate = shlex.split(options.evaluate)
        except ValueError as error:  # unbalanced quotes
            raise UserError(f"evaluate is {options.evaluate!r}: {error}; mend that") from error
        self._active: set[subprocess.Popen] = set()
        self._stop = threading.Event()
        self._places: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        own = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in options.gpus]
        for place in own or [_share(options.together)] * options.together:
            self._places.put(place)

    def check_evaluation(self, runs: Sequence[Run]) -> None:
        """Raises UserError now for flags that evaluate.py would refuse hours later."""
        if self.options.evaluate == "none" or all(map(self.is_done, runs)):
            return
        said = ""
        if any(re.match("--?output_dir", flag) for flag in self._evaluate):
            said = "a sweep reads the scores in the work directories; leave --output_dir out"
        else:
            flags = ["--only_check_args", *self._evaluate]
            checked = subprocess.run(
                [sys.executable, str(ROOT / NAME), "evaluate", *flags],
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                capture_output=True,
                text=True,
            )
            if checked.returncode:
                said = checked.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        if said:
            raise UserError(
                f"evaluate is {self.options.evaluate!r}; {script('evaluate')} refuses it: {said}"
            )

    def launch(self, runs: Sequence[Run]) -> list[str]:
        """Makes all runs, even if some fail; returns the names of those that failed.

        If it is told to stop meanwhile, the process ends with code 75.
        """
        before = {number: signal.signal(number, self._hear) for number in stop_signals()}
        failed, start = [], time.monotonic()
        try:
            with ThreadPoolExecutor(self._places.qsize()) as pool:
                futures = {pool.submit(self._complete, run): run for run in runs}
                for number, future in enumerate(as_completed(futures), start=1):
                    name, minutes = futures[future].name, (time.monotonic() - start) / 60
                    try:
                        said = f"{future.result():8} {name}; {number} of {len(runs)}"
                        print(f"{said}, {minutes:.1f} min", flush=True)
                    except Exception as error:  # the others go on
                        if not self._stop.is_set():
                            failed.append(name)
                            said = str(error) if isinstance(error, UserError) else repr(error)
                            print(f"failed   {name}: {said}", file=sys.stderr, flush=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._stop.is_set():
            print("stopped; the same command goes on", file=sys.stderr)
            raise SystemExit(STOPPED)
        return failed

    def is_done(self, run: Run) -> bool:
        """True if a run has been trained and evaluated as the options say."""
        if isinstance(run.config, UserError):
            return False
        if self.options.results and self.options.evaluate != "none":
            return self._result(run).exists()  # the work directory may be gone
        with contextlib.suppress(*MISSING, UserError):  # then it is made again
            found = read_json(self.workdir(run) / DONE, self.workdir(run), dict[str, Any])
            return self._mark(run).items() <= found.items()
        return False

    def workdir(self, run: Run) -> Path:
        return self.options.out / run.name

    def training_flags(self, run: Run) -> list[str]:
        """The flags of train.py for a run."""
        return [*run.flags(self.options.flags), f"--workdir={self.workdir(run)}"]

    def _mark(self, run: Run) -> dict[str, str]:
        # The data may have moved since, and the devices may be others.
        fields = json.dumps(history.recorded_fields(run.config), sort_keys=True)
        config = hashlib.sha256(fields.encode()).hexdigest()
        return {"config_sha256": config, "evaluate": self.options.evaluate}

    def _result(self, run: Run) -> Path:
        return self.options.results / f"{run.name}.json"

    def _complete(self, run: Run) -> str:
        """Trains a run to its end and evaluates it, unless that is done."""
        if isinstance(run.config, UserError):
            raise run.config
        if self.is_done(run):
            return "is done"
        place = self._places.get()
        try:
            self._call(run, place, "train", *self.training_flags(run))
            if self.options.evaluate != "none":
                flags = [f"--workdir={self.workdir(run)}", *self._evaluate]
                if self.options.results:
                    flags.append(f"--record={self._result(run)}")
                self._call(run, place, "evaluate", *flags)
            write_json(self.workdir(run) / DONE, self._mark(run))
        finally:
            self._places.put(place)
        return "done"

    def _call(self, run: Run, place: dict[str, str], name: str, *flags: str) -> None:
        """Runs a script of ours; its output goes to <run>.<script>.log."""
        log = self.options.out / f"{run.name}.{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream:
            if self._stop.is_set():
                raise UserError("stopped")
            # In a session of its own, so that we pass Ctrl-C on, once.
            process = subprocess.Popen(
                [sys.executable, str(ROOT / NAME), name, *flags],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=os.environ | place,
                start_new_session=True,
            )
            self._active.add(process)
            if self._stop.is_set():  # told to stop while it started
                process.terminate()
            code = process.wait()
            self._active.discard(process)
        if code:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise UserError(f"{script(name)} ended with exit code {code}; see {log}: {last[:300]}")

    def _hear(self, number: int, frame: Any) -> None:
        said = f"{signal.Signals(number).name}: stopping the runs, which save; a second signal"
        with contextlib.suppress(OSError):
            os.write(2, f"{said} ends them\n".encode())
        self._stop.set()
        for process in list(self._active):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()


def _share(together: int) -> dict[str, str]:
    """The environment of each of several runs on one GPU.

    By default a run reserves three quarters of the memory at its start; here none does. Each has a
    share, by which decoding/batching.py sizes searches. A fraction that the user has set stays.
    """
    if together == 1:
        return {}
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & os.environ.keys():
        own["XLA_CLIENT_MEM_FRACTION"] = f"{0.9 / together:.4f}"
    return own
