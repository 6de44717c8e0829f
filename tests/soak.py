"""Trains through kills, signals, full disks and damaged files, and compares the result.

    python tests/soak.py --minutes=60
    python tests/soak.py --kills=30 --variant=plain

A run that nothing disturbs is the measure. Others, of the same config, are struck again and
again at random moments and started again; when one has reached its end, its parameters,
optimizer state, kept checkpoints, scores and metrics must be equal to the measure's, to the
bit. Needs no data: it trains on sentences that it makes up. Exit code 1 if anything differs.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIG = {
    "data.max_source_length": 32,
    "data.max_target_length": 32,
    "tokenizer.vocab_size": 400,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.num_heads": 2,
    "optimizer.warmup_steps": 100,
    "training.steps": 1000,
    "training.tokens_per_update": 512,
    "training.log_every": 7,
    "training.checkpoint_every": 50,
    "training.full_validation_every": 250,
    "training.keep_last": 2,
    "decoding.max_extra_length": 5,
}
VARIANTS = {
    "plain": {},
    "accumulated": {"training.max_tokens_per_device": 160},
    "bfloat16": {"model.dtype": "bfloat16", "model.attention_dropout": 0.1},
}
# What no two runs have in common.
TIMES = "train/tokens_per_second", "total/seconds", "input/wait_ms"


def write_text(directory: Path, seed: int) -> dict[str, str]:
    """Parallel text of made-up words, the target a reversal of the source; and its fields."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(500)]
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"data.source_language": "en", "data.target_language": "de"}
    for split, count in {"train": 3000, "validation": 60}.items():
        sentences = [rng.choices(words, k=rng.randint(2, 9)) for _ in range(count)]
        for side, step in {"source": 1, "target": -1}.items():
            path = directory / f"{split}.{side}"
            path.write_text("".join(" ".join(s[::step]) + "\n" for s in sentences))
            fields[f"data.{split}_{side}"] = str(path)
    return fields


class Run:
    """A work directory, and the processes that train in it."""

    def __init__(self, workdir: Path, fields: dict[str, object], caches: Path):
        self.steps = fields["training.steps"]
        self.workdir, self.log = workdir, workdir.with_name(f"{workdir.name}.log")
        self.compiled = caches / "compiled"
        self.tokens = caches / "data"
        fields = {**fields, "data.data_dir": self.tokens}
        options = [f"--config.{name}={value}" for name, value in fields.items()]
        config = f"--config={ROOT / 'configs' / 'base.py'}"
        train = str(ROOT / "train.py")
        self.command = [sys.executable, train, config, f"--workdir={workdir}", *options]
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.compiled),
            "PYTHONFAULTHANDLER": "1",
        }

    def start(self, file_limit: int | None = None) -> subprocess.Popen:
        """Starts to train; with `file_limit`, no file may grow beyond so many bytes."""

        def limit():
            if file_limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=limit,
            )
        return self.process

    def end(self, after: float = 0) -> None:
        """kill -9, after so many seconds or when it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=after)
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Trains to the end."""
        process = self.start()
        if process.wait(timeout=1200) != 0:
            raise Failure(f"exit code {process.returncode}; see run.log")

    @property
    def is_finished(self) -> bool:
        last = self.workdir / "checkpoints" / str(self.steps) / "scores.json"
        return last.exists() and (self.workdir / "learning_curve.png").exists()

    def checkpoints(self) -> list[int]:
        directory = self.workdir / "checkpoints"
        names = [path.name for path in directory.iterdir()] if directory.exists() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def result(self) -> dict[str, object]:
        """All that must not depend on what happened on the way."""
        metrics = []
        for line in (self.workdir / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            metrics.append({name: v for name, v in values.items() if name not in TIMES})
        checkpoints = {}
        for step in self.checkpoints():
            directory = self.workdir / "checkpoints" / str(step)
            record = json.loads((directory / "record" / "record.json").read_text())
            scores = json.loads((directory / "scores.json").read_text())
            checkpoints[step] = record["digests"], record["notes"], scores
        return {"metrics": metrics, "checkpoints": checkpoints}


class Failure(Exception):
    """Something is not as it must be."""


# --- What can happen to a run -------------------------------------------------------------
#
# Each is called with the run, a source of randomness, and the longest time to wait.


def kill(run: Run, rng: random.Random, longest: float) -> None:
    """kill -9 at a random moment."""
    run.start()
    run.end(rng.uniform(0, longest))


def kill_in_a_save(run: Run, rng: random.Random, longest: float) -> None:
    """kill -9 while a checkpoint is being written."""
    process = run.start()
    directory = run.workdir / "checkpoints"
    end = time.monotonic() + longest
    while process.poll() is None and time.monotonic() < end:
        if any(".orbax-checkpoint-tmp" in name for name in listing(directory)):
            time.sleep(rng.uniform(0, 0.05))
            break
        time.sleep(0.001)
    run.end()


def send(run: Run, rng: random.Random, longest: float) -> None:
    """SIGTERM or SIGINT: the run saves and says that it can go on."""
    process = run.start()
    number = rng.choice([signal.SIGTERM, signal.SIGINT])
    begun = wait_for(process, run, b"start    at step", 60)
    wait(process, rng.uniform(0, longest))
    newest = run.checkpoints()[-1:]
    process.send_signal(number)
    code = process.wait(timeout=60)
    if code not in (75, 0) and begun and not run.is_finished:
        raise Failure(f"exit code {code} after {number.name}; see run.log")
    if code == 75 and begun and run.checkpoints()[-1:] < newest:
        raise Failure(f"no newer checkpoint than {newest} after {number.name}")


def send_at_any_time(run: Run, rng: random.Random, longest: float) -> None:
    """A signal in any phase, before there are handlers even; often a second one."""
    process = run.start()
    wait(process, rng.uniform(0, longest))
    process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
    if rng.random() < 0.5:  # it ends the run at once
        wait(process, rng.uniform(0, 0.1))
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    elif (code := process.wait(timeout=60)) not in (75, 0, -15, -2, 1, 130):
        raise Failure(f"exit code {code} after a signal; see run.log")


def fill_the_disk(run: Run, rng: random.Random, longest: float) -> None:
    """No room for a while: files cannot grow, as on a full disk or beyond a quota."""
    process = run.start(file_limit=rng.choice([100, 5_000, 100_000]))
    wait(process, rng.uniform(0, longest))
    process.send_signal(rng.choice([signal.SIGTERM, signal.SIGKILL]))
    process.wait(timeout=60)


def damage_a_checkpoint(run: Run, rng: random.Random, longest: float) -> None:
    """The newest checkpoint is altered; the next start must use another, or find it equal."""
    steps = run.checkpoints()
    if len(steps) < 2:
        return kill(run, rng, longest)
    directory = run.workdir / "checkpoints" / str(steps[-1])
    files = [p for p in directory.rglob("*") if p.is_file() and p.name != "scores.json"]
    path = rng.choice(files)
    how = damage(path, rng)
    if not wait_for(run.start(), run, b"start    at step", 60):
        raise Failure(f"{path}: {how}: no start from another checkpoint; see run.log")
    run.end(rng.uniform(0, longest))


def damage_a_cache(run: Run, rng: random.Random, longest: float) -> None:
    """Token cache or compiled programs are altered in size, as a sudden death may leave them."""
    files = [p for p in (run.tokens, run.compiled) for p in p.rglob("*") if p.is_file()]
    files = [path for path in files if path.suffix != ".lock"]
    for path in rng.sample(files, min(3, len(files))):
        os.truncate(path, rng.randrange(path.stat().st_size + 1))
    kill(run, rng, longest)


def lose_the_caches(run: Run, rng: random.Random, longest: float) -> None:
    """kill -9 during tokenisation or the first compilation."""
    shutil.rmtree(run.tokens, ignore_errors=True)
    shutil.rmtree(run.compiled, ignore_errors=True)
    kill(run, rng, longest)


FAULTS = {
    kill: 6,
    kill_in_a_save: 3,
    send: 4,
    send_at_any_time: 3,
    fill_the_disk: 3,
    damage_a_checkpoint: 3,
    damage_a_cache: 1,
    lose_the_caches: 1,
}


def damage(path: Path, rng: random.Random) -> str:
    """Alters a file so that its content is not the same; says how."""
    content = path.read_bytes()
    how = rng.choice(["flip", "truncate", "remove", "empty", "zeros"])
    if how == "remove":
        path.unlink()
    elif how == "flip" and content:
        place = rng.randrange(len(content))
        flipped = bytes([content[place] ^ (1 << rng.randrange(8))])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
        return f"a bit of byte {place} of {len(content)} flipped"
    elif how == "truncate":
        path.write_bytes(content[: rng.randrange(len(content) or 1)])
    elif how == "zeros" and content.strip(b"\0"):
        path.write_bytes(bytes(len(content)))
    else:
        path.write_bytes(b"")
    return how


def listing(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def wait(process: subprocess.Popen, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


def wait_for(process: subprocess.Popen, run: Run, text: bytes, seconds: float) -> bool:
    """Waits until the process has written `text`; False if it ended before or takes too long."""
    begin, end = run.log.stat().st_size, time.monotonic() + seconds
    while time.monotonic() < end:
        with run.log.open("rb") as log:
            log.seek(begin)
            if text in log.read():
                return True
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    return False


# --- The whole ----------------------------------------------------------------------------


def difference(expected: object, found: object, path: str = "") -> str | None:
    """The first place where two results differ."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        parts = [(f"{path}/{key}", expected[key], found[key]) for key in expected]
    elif isinstance(expected, list | tuple) and len(expected) == len(found):
        parts = [(f"{path}/{i}", *both) for i, both in enumerate(zip(expected, found))]
    else:
        return None if expected == found else f"{path}: {expected!r} became {found!r}"[:500]
    return next((d for name, a, b in parts if (d := difference(a, b, name))), None)


def soak(
    directory: Path, variant: str, rng: random.Random, end: float, faults: dict, most: int
) -> collections.Counter:
    """One run through faults to its end, compared with an undisturbed one. Counts the faults."""
    fields = {**write_text(directory / "text", seed=1), **CONFIG, **VARIANTS[variant]}

    measure = Run(directory / f"measure-{variant}", fields, directory / "caches-measure")
    if not measure.is_finished:
        measure.finish()

    count: collections.Counter = collections.Counter()
    (directory / "struck").mkdir()
    with contextlib.ExitStack() as stack:
        run = Run(directory / "struck" / "run", fields, directory / "caches")
        stack.callback(run.end)
        try:
            while not run.is_finished and count.total() < most and time.monotonic() < end:
                fault = rng.choices(list(faults), list(faults.values()))[0]
                count[fault.__name__] += 1
                fault(run, rng, longest=8.0)
            run.finish()
            if found := difference(measure.result(), run.result()):
                raise Failure(found)
        except Failure as failure:
            run.end()
            kept = shutil.copytree(directory / "struck", directory / "failed")
            raise Failure(f"{variant}, {dict(count)}: {failure}; kept in {kept}") from None
    shutil.rmtree(directory / "struck")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kills", type=int, help="so many kill -9 and nothing else")
    parser.add_argument("--steps", type=int, default=1000, help="updates of each run")
    parser.add_argument("--variant", choices=VARIANTS, help="only this; else all in turn")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    CONFIG["training.steps"] = arguments.steps
    rng = random.Random(arguments.seed)
    start = time.monotonic()
    end = start + 60 * arguments.minutes
    faults, most = (FAULTS, sys.maxsize)
    if arguments.kills:
        faults, most = {kill: 3, kill_in_a_save: 1}, arguments.kills
    total: collections.Counter = collections.Counter()
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    runs = 0
    try:
        while total.total() < most if arguments.kills else time.monotonic() < end:
            variant = arguments.variant or list(VARIANTS)[runs % len(VARIANTS)]
            count = soak(directory, variant, rng, end, faults, most - total.total())
            runs, total = runs + 1, total + count
            minutes = (time.monotonic() - start) / 60
            said = f"{minutes:.0f} min: run {runs} ({variant}) is equal after {dict(count)}"
            print(said, flush=True)
    except Failure as failure:
        sys.exit(f"after {runs} equal runs and {dict(total)}: {failure}")
    shutil.rmtree(directory)
    print(f"{runs} runs, each equal to an undisturbed one to the bit, through {dict(total)}")


if __name__ == "__main__":
    main()
