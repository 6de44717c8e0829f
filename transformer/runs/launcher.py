"""The runs of a sweep: trains and evaluates each, in turn or several at once.

Every run is a process of train.py, then one of evaluate.py. WORKDIR/sweep.json marks a finished run
and lists the evaluations made for the sweep; a finished run is not started again.
"""

import contextlib
import functools
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from transformer.runs import history
from transformer.runs.sweep import Run
from transformer.system.commands import NAME, ROOT, script
from transformer.system.errors import UserError
from transformer.system.files import write_json
from transformer.system.locks import InUse, lock_file
from transformer.system.reading import MISSING, Count, read_json
from transformer.system.startup import STOPPED, stop_signals

DONE = "sweep.json"


class Options(NamedTuple):
    """Options for making the runs of a sweep.

    out: the folder of their work directories. flags: more flags of train.py. evaluate: flags of
    evaluate.py, or "none". results: the ledger's folder; None to record nothing. export: the folder
    for the evaluated models, without training state; None to export nothing. together: the number
    of runs at once. gpus: names of GPUs, each for one run at a time.
    """

    out: Path
    flags: Sequence[str] = ()
    evaluate: str = "--split=test"
    results: Path | None = None
    export: Path | None = None
    together: int = 1
    gpus: Sequence[str] = ()


class Mark(TypedDict, total=False):
    """The content of a run's DONE file."""

    config_sha256: str
    evaluate: str
    export: str | None
    evaluations: list[str]


class Failed(Exception):
    """A run ended with an error; the message is one line."""


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
        if any(re.match("--?output_dir", flag) for flag in self._evaluate):
            raise UserError(
                f"evaluate is {self.options.evaluate!r}; leave --output_dir out: a sweep reads the "
                "scores in the work directories"
            )
        command = [
            sys.executable,
            str(ROOT / NAME),
            "evaluate",
            "--only_check_args",
            *self._evaluate,
        ]
        checked = subprocess.run(
            command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
        )
        if checked.returncode:
            said = checked.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
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
                    name = futures[future].name
                    try:
                        said = future.result()
                    except Exception as error:  # any error: the others go on
                        if not self._stop.is_set():
                            failed.append(name)
                            is_known = isinstance(error, Failed | UserError)
                            kind = "" if is_known else f"{type(error).__name__}: "
                            print(f"failed   {name}: {kind}{error}", file=sys.stderr, flush=True)
                        continue
                    minutes = (time.monotonic() - start) / 60
                    print(
                        f"{said:8} {name}; {number} of {len(runs)}, {minutes:.1f} min", flush=True
                    )
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
        result = self._result(run)
        if result and result.exists():  # the work directory may be gone
            return self._exported(run) is None or self._exported(run).exists()
        return self._mark(run).items() <= self._found_mark(run).items()

    def evaluations(self, run: Run) -> list[str]:
        """The folders below WORKDIR/eval that were made for the sweep, if that is known."""
        return self._found_mark(run).get("evaluations", [])

    def workdir(self, run: Run) -> Path:
        return self.options.out / run.name

    def training_flags(self, run: Run) -> list[str]:
        """The flags of train.py for a run."""
        return [*run.flags_with(self.options.flags), f"--workdir={self.workdir(run)}"]

    def _mark(self, run: Run) -> dict[str, Any]:
        # The data may have moved since, and the devices may be others.
        fields = json.dumps(history.recorded_fields(run.config), sort_keys=True)
        export = self._exported(run)
        return {
            "config_sha256": hashlib.sha256(fields.encode()).hexdigest(),
            "evaluate": self.options.evaluate,
            "export": export and str(export),
        }

    def _found_mark(self, run: Run) -> Mark:
        with contextlib.suppress(*MISSING, UserError):  # then it is written again
            return read_json(self.workdir(run) / DONE, self.workdir(run), Mark)
        return {}

    def _result(self, run: Run) -> Path | None:
        return self.options.results and self.options.results / f"{run.name}.json"

    def _exported(self, run: Run) -> Path | None:
        return self.options.export and self.options.export / run.name

    def _complete(self, run: Run) -> str:
        """Trains a run to its end and evaluates it, unless that is done."""
        if isinstance(run.config, UserError):
            raise run.config
        if self.is_done(run):
            return "is done"
        place = self._places.get()
        try:
            with self._alone(run) as lock:
                if self.is_done(run):  # another start of the sweep has done it
                    return "is done"
                self._train_and_evaluate(run, place, lock)
        finally:
            self._places.put(place)
        return "done"

    def _train_and_evaluate(self, run: Run, place: dict[str, str], lock: int | None) -> None:
        asked, result = self._evaluate, self._result(run)
        workdir = f"--workdir={self.workdir(run)}"
        evaluations = self.evaluations(run)
        call = functools.partial(self._call, run, place, lock)
        if not (result and result.exists()):
            call("train", *self.training_flags(run))
            if self.options.evaluate != "none":
                record = [f"--record={result}"] if result else []
                before = self._scores(run)
                call("evaluate", workdir, *asked, *record)
                evaluations = self._new_evaluations(run, before)
        exported = self._exported(run)
        if exported and not exported.exists():
            call("evaluate", workdir, *self._tested(run), f"--export={exported}")
        if self.workdir(run).exists():
            mark = self._mark(run) | {"evaluations": evaluations}
            write_json(self.workdir(run) / DONE, mark)

    def _scores(self, run: Run) -> dict[Path, tuple[int, int]]:
        """Every scores.json below WORKDIR/eval, with mtime and inode, which change on a rewrite."""
        found = (self.workdir(run) / "eval").glob("*/scores.json")
        own = [path for path in found if not path.parent.is_symlink()]  # eval/latest
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in own}

    def _new_evaluations(self, run: Run, before: Mapping[Path, tuple[int, int]]) -> list[str]:
        """The folders written since; if a result was recorded, those of the chosen checkpoint."""
        new = [path for path, state in self._scores(run).items() if before.get(path) != state]
        if result := self._result(run):  # several checkpoints were tried on validation
            chosen = _tested(result, result.parent)["checkpoint_steps"]
            workdir = self.workdir(run)
            new = [x for x in new if _tested(x, workdir)["checkpoint_steps"] == chosen]
        return sorted(path.parent.name for path in new)

    def _tested(self, run: Run) -> list[str]:
        """The flags for the checkpoint that was evaluated."""
        result = self._result(run)
        if result and result.exists():  # there is none if nothing is evaluated
            tested = _tested(result, result.parent)
            chosen = [f"--checkpoint={tested['checkpoint']}"]
            if tested["checkpoint"] == "average":
                chosen.append(f"--average_last={len(tested['checkpoint_steps'])}")
            return chosen
        chosen = []
        for flag, following in zip(self._evaluate, [*self._evaluate[1:], ""], strict=True):
            if match := re.fullmatch("(--?(?:checkpoint|average_last))(=.*)?", flag):
                chosen.append(flag if match[2] else f"{flag}={following}")
        return chosen

    @contextlib.contextmanager
    def _alone(self, run: Run) -> Iterator[int | None]:
        """Holds OUT/<run>.lock, so that another start of the sweep waits for the whole run.

        Yields the lock's descriptor, which the run's processes inherit: if the sweep is killed, its
        next start waits for them, too. Yields None if the sweep is told to stop first. Also waits
        for a training that was started by hand, or that outlived its sweep on another host.
        """
        own, training = self.options.out / f"{run.name}.lock", self.workdir(run) / "lock"
        own.parent.mkdir(parents=True, exist_ok=True)
        is_told = False
        while not self._stop.is_set():
            with contextlib.ExitStack() as held:
                try:
                    lock = held.enter_context(lock_file(own, wait=False))
                    if training.exists():
                        with lock_file(training, wait=False):
                            pass
                except InUse as error:
                    if not is_told:
                        said = f"waiting  {run.name}: {error.holder}, or its child, works on it"
                        print(said, file=sys.stderr, flush=True)
                    is_told = True
                else:
                    yield lock
                    return
            self._stop.wait(1.0)
        yield None

    def _call(
        self, run: Run, place: dict[str, str], lock: int | None, script: str, *flags: str
    ) -> None:
        """Runs a script of ours; its output goes to <run>.<script>.log."""
        log = self.options.out / f"{run.name}.{script}.log"
        command = [sys.executable, str(ROOT / NAME), script, *flags]
        with log.open("a") as stream:
            if self._stop.is_set():
                raise Failed("stopped")
            # In a session of its own, so that we pass Ctrl-C on, once.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=os.environ | place,
                pass_fds=[] if lock is None else [lock],
                start_new_session=True,
            )
            self._active.add(process)
            if self._stop.is_set():  # told to stop while it started
                process.terminate()
            code = process.wait()
            self._active.discard(process)
        if code:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise Failed(f"{script}.py ended with exit code {code}; see {log}: {last[:300]}")

    def _hear(self, number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):
            os.write(
                2, f"{name}: stopping the runs, which save; a second signal ends them\n".encode()
            )
        self._stop.set()
        for process in list(self._active):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()


class _Tested(TypedDict):
    """The fields of a result or a scores.json that name the evaluated checkpoint."""

    checkpoint: NotRequired[str]
    checkpoint_steps: list[Count]


def _tested(path: Path, inside: Path) -> _Tested:
    return read_json(path, inside, _Tested, "evaluate the run again")


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
