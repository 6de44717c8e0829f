"""Text tokenised once into memory-mapped arrays, which every later run opens at once."""

import collections
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import multiprocessing
import multiprocessing.context
import operator
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, product
from typing import NamedTuple

import numpy as np
from absl import logging

from transformer.data.sources import Pair, PairSource
from transformer.data.tokenizers import Tokenizers, from_bytes
from transformer.data.vocabulary import EOS
from transformer.system.errors import UserError

# Change it whenever the same text would give other files.
_FORMAT = 1
_SAMPLING = 2  # likewise, of text that is sampled
_CHUNK = 16_384  # pairs; what is random in them depends on it
# With fewer pairs, starting processes takes longer than they save.
_LARGE = 200_000
_LARGE_SAMPLED = 20_000
# One process reads for all, and cannot feed more.
_MOST_PROCESSES = 16
_SIDES = ("source", "target")
_DROPPED = ("empty", "source_too_long", "target_too_long")
_COUNTED = ("pairs", *_DROPPED, "total")
# No others are read: of the type "object", a file's bytes would be taken for pointers.
_DTYPES = {"tokens": ("uint16", "int32"), "offsets": ("int64",)}
# Seconds without a write after which a builder on another machine is taken for dead.
_ABANDONED = 3600


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """Token ids of N sentence pairs; every sentence ends with EOS, none starts with BOS.

    source_tokens, target_tokens: the sentences one after the other, uint16 or, for a
      vocabulary of more than 65,536, int32.
    source_offsets, target_offsets: int64 (N + 1,); sentence i is
      tokens[offsets[i]:offsets[i + 1]].
    report: how many pairs there were ('total'), were kept ('pairs') and were dropped
      ('empty', 'source_too_long', 'target_too_long'; each counted once, in this order).
    The arrays are memory-mapped and read-only.
    """

    source_tokens: np.ndarray
    source_offsets: np.ndarray
    target_tokens: np.ndarray
    target_offsets: np.ndarray
    report: dict[str, int]

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, i: int) -> np.ndarray:
        return self.source_tokens[self.source_offsets[i] : self.source_offsets[i + 1]]

    def target(self, i: int) -> np.ndarray:
        return self.target_tokens[self.target_offsets[i] : self.target_offsets[i + 1]]

    @property
    def summary(self) -> str:
        """How many pairs were kept and dropped, for people."""
        dropped = [f"{self.report[name]:,} {name.replace('_', ' ')}" for name in _DROPPED]
        return f"{len(self):,} of {self.report['total']:,} pairs; dropped: {', '.join(dropped)}"

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """int32 (N,), EOS included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """int32 (N,), EOS included."""
        return np.diff(self.target_offsets).astype(np.int32)


def token_cache(
    source: PairSource,
    tokenizers: Tokenizers,
    cache_dir: str | os.PathLike,
    max_source_length: int | None,
    max_target_length: int | None,
    sampling_alpha: float = 0.0,
    num_samples: int = 1,
    *,
    num_processes: int | None = None,
) -> TokenizedPairs:
    """The tokenised pairs of a source: read from cache_dir, or made and kept there.

    max_source_length, max_target_length: tokens, EOS included. A pair with a longer side
      or with a blank one is dropped. None and None (validation and test data) keep every
      pair, uncut; an empty line is then EOS alone.
    sampling_alpha, num_samples: all pairs, then all again, so many times; with an alpha that is
      not 0, segmented otherwise each time (see Tokenizer.sample_batch), and kept or dropped by
      the length that comes of it.
    num_processes: that tokenise; 0 means in this process. None chooses by the size of the
      source. The result is the same for all.

    Any number of processes may call this at once with one cache_dir: one makes the
    files, the others wait and read. Raises UserError when no pair is left, and when
    cache_dir cannot be written or is full.
    """
    # 1. A cache is found by all that its content depends on.
    identity = [
        _FORMAT,
        source.fingerprint,
        tokenizers.source.sha256,
        tokenizers.target.sha256,
        max_source_length,
        max_target_length,
    ]
    if (sampling_alpha, num_samples) != (0.0, 1):
        identity += [sampling_alpha, num_samples, _SAMPLING]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    directory = pathlib.Path(cache_dir).expanduser() / key

    # 2. It is whole, or it is not there: it gets its name when it is finished.
    if (found := _open(directory)) is not None:
        return found

    # 3. One process at a time makes it.
    if num_processes is None:
        is_large = len(source) * num_samples > (_LARGE_SAMPLED if sampling_alpha else _LARGE)
        num_processes = min(_MOST_PROCESSES, _cpu_count()) if is_large else 0
    encoder = _Encoder(tokenizers, max_source_length, max_target_length, sampling_alpha)
    with _translated_errors(directory.parent):
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = directory.with_suffix(".lock").open("a")
    with lock:
        is_locked = _lock(lock, directory)
        if (found := _open(directory, warn=True)) is not None:
            return found  # another process made it while this one waited
        if is_locked:
            _remove_leftovers(directory)
        _build(directory, source, num_samples, encoder, num_processes)
    if (found := _open(directory)) is None:
        raise UserError(f"the token cache {directory} vanished; is something deleting it?")
    logging.info("token cache %s: %s", directory, found.report)
    return found


def _open(directory: pathlib.Path, warn: bool = False) -> TokenizedPairs | None:
    """The cache in a directory; None if there is none or if it is damaged."""
    try:
        meta = json.loads((directory / "meta.json").read_bytes())
        arrays = {}
        for side, (what, dtypes) in product(_SIDES, _DTYPES.items()):
            name = f"{side}_{what}"
            dtype, length = meta["arrays"][name]
            if dtype not in dtypes:
                raise ValueError(f"{name} is of type {dtype!r}")
            path = directory / f"{name}.bin"
            size, expected = path.stat().st_size, np.dtype(dtype).itemsize * length
            if size != expected:
                raise ValueError(f"{path.name} has {size} bytes instead of {expected}")
            # As plain arrays: slices of np.memmap objects are slow to make.
            arrays[name] = np.memmap(path, dtype, mode="r").view(np.ndarray)
        report = {name: operator.index(meta["report"][name]) for name in _COUNTED}
        for side in _SIDES:
            offsets, end = arrays[f"{side}_offsets"], len(arrays[f"{side}_tokens"])
            if (
                len(offsets) != report["pairs"] + 1
                or (offsets[0], offsets[-1]) != (0, end)
                or np.any(offsets[1:] <= offsets[:-1])
            ):
                raise ValueError(f"{side}_offsets.bin does not fit {side}_tokens.bin")
        return TokenizedPairs(**arrays, report=report)
    # RecursionError: of JSON that is nested very deeply.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if warn and directory.exists():
            logging.warning("token cache %s is damaged and made again: %s", directory, error)
        return None


# --- Making a cache -----------------------------------------------------------------------


def _build(
    directory: pathlib.Path,
    source: PairSource,
    num_samples: int,
    encoder: "_Encoder",
    num_processes: int,
) -> None:
    """Writes the cache under a temporary name and renames it."""
    temporary = directory.with_suffix(f".{os.getpid()}.{socket.gethostname()}.tmp")
    report = dict.fromkeys(_COUNTED, 0)
    started = logged = time.monotonic()
    num_pairs = num_samples * len(source)
    times = f", {num_samples} times" if num_samples > 1 else ""
    chunks = chain.from_iterable(source.chunks(_CHUNK) for _ in range(num_samples))
    logging.info("tokenising %s%s with %d processes", source.describe(), times, num_processes)
    try:
        with _translated_errors(directory.parent):
            temporary.mkdir()
            files = _Files(temporary, encoder.dtypes)
        with files, contextlib.closing(_encoded(chunks, encoder, num_processes)) as encoded:
            for chunk in encoded:
                done = report["total"]
                needed = files.num_bytes * num_pairs // done if done else 0
                with _translated_errors(directory.parent, needed):
                    files.append(chunk)
                for name, count in chunk.report.items():
                    report[name] += count
                if time.monotonic() - logged > 30:
                    logged = time.monotonic()
                    done = report["total"]
                    speed = done / (logged - started)
                    logging.info("%d of %d pairs, %d pairs/s", done, num_pairs, speed)
            if report["pairs"] == 0:
                counts = ", ".join(f"{name}: {report[name]}" for name in _DROPPED)
                raise UserError(
                    f"no pair is left of {source.describe()}{times} ({counts}); see "
                    "data.max_source_length and data.max_target_length"
                )
            with _translated_errors(directory.parent, files.num_bytes):
                files.finish(report)
        with _translated_errors(directory.parent):
            _publish(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Chunk(NamedTuple):
    """Encoded pairs: the tokens of all, and the length of each; what `report` counts."""

    source_tokens: np.ndarray
    source_lengths: np.ndarray
    target_tokens: np.ndarray
    target_lengths: np.ndarray
    report: dict[str, int]


class _Encoder:
    """Encodes and filters pairs."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        max_source: int | None,
        max_target: int | None,
        sampling_alpha: float,
    ):
        self.tokenizers = tokenizers
        self.limits = (max_source, max_target)
        self.sampling_alpha = sampling_alpha
        self.dtypes = tuple(
            np.uint16 if tokenizer.vocab_size <= 65536 else np.int32 for tokenizer in tokenizers
        )

    def __call__(self, number: int, pairs: list[Pair], num_threads: int) -> _Chunk:
        """The chunk of this number, which seeds what is random in it."""
        report = {"total": len(pairs)} | dict.fromkeys(_DROPPED, 0)
        batches = []
        for side, tokenizer in enumerate(self.tokenizers):
            texts = [pair[side] for pair in pairs]
            if self.sampling_alpha:
                seed = 2 * number + side
                batches.append(tokenizer.sample_batch(texts, self.sampling_alpha, seed))
            else:
                batches.append(tokenizer.encode_batch(texts, num_threads))
        max_source, max_target = (
            float("inf") if limit is None else limit - 1 for limit in self.limits
        )
        sources, targets = [], []
        for pair, source, target in zip(pairs, *batches, strict=True):
            if self.limits != (None, None):
                # A tokenizer that normalises may leave nothing of a line that has text.
                if not (source and target and pair[0].strip() and pair[1].strip()):
                    report["empty"] += 1
                    continue
                if len(source) > max_source:
                    report["source_too_long"] += 1
                    continue
                if len(target) > max_target:
                    report["target_too_long"] += 1
                    continue
            sources.append(source)
            targets.append(target)
        report["pairs"] = len(sources)
        return _Chunk(
            *_flat(sources, self.dtypes[0]), *_flat(targets, self.dtypes[1]), report=report
        )


def _flat(sentences: list[list[int]], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """The sentences, EOS appended to each, one after the other; and their lengths."""
    for sentence in sentences:
        sentence.append(EOS)
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype, lengths.sum()), lengths


class _Files:
    """The files of a cache that is being written."""

    def __init__(self, directory: pathlib.Path, dtypes: tuple[type, type]):
        self._directory = directory
        self._arrays = {}
        for side, dtype in zip(_SIDES, dtypes, strict=True):
            self._arrays[f"{side}_tokens"] = [np.dtype(dtype), 0]
            self._arrays[f"{side}_offsets"] = [np.dtype(np.int64), 0]
        self._files = {name: (directory / f"{name}.bin").open("wb") for name in self._arrays}
        self._ends = dict.fromkeys(_SIDES, 0)
        self.num_bytes = 0
        for side in _SIDES:
            self._write(f"{side}_offsets", np.zeros(1, np.int64))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for file in self._files.values():
            # On a full disk, what is left in the buffer fails here a second time.
            with contextlib.suppress(OSError):
                file.close()

    def append(self, chunk: _Chunk) -> None:
        for side in _SIDES:
            tokens = getattr(chunk, f"{side}_tokens")
            ends = self._ends[side] + np.cumsum(getattr(chunk, f"{side}_lengths"))
            self._ends[side] += len(tokens)
            self._write(f"{side}_tokens", tokens)
            self._write(f"{side}_offsets", ends)

    def finish(self, report: dict[str, int]) -> None:
        """Everything is on the disk after this."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        arrays = {name: [dtype.name, length] for name, (dtype, length) in self._arrays.items()}
        with open(self._directory / "meta.json", "w") as file:
            json.dump({"arrays": arrays, "report": report}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def _write(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(values.data)
        self._arrays[name][1] += len(values)
        self.num_bytes += values.nbytes


def _publish(temporary: pathlib.Path, directory: pathlib.Path) -> None:
    try:
        temporary.rename(directory)
    except OSError:
        # There is one: damaged, or just made by a process that no lock held back.
        if _open(directory) is not None:
            return
        shutil.rmtree(directory)
        temporary.rename(directory)
    # Some file systems cannot sync directories.
    with contextlib.suppress(OSError):
        parent = os.open(directory.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


@contextlib.contextmanager
def _translated_errors(cache_dir: pathlib.Path, num_bytes: int = 0) -> Iterator[None]:
    """Makes a failing write a UserError; num_bytes are needed in all, 0 if unknown."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = f" (it needs about {num_bytes:,} bytes)" if num_bytes else ""
            raise UserError(
                f"no space left for the token cache in {cache_dir}{needed}; free some, or "
                "choose another directory"
            ) from error
        raise UserError(
            f"cannot write the token cache in {cache_dir}: {error.strerror or error}"
        ) from error


# --- One builder at a time ----------------------------------------------------------------


def _lock(file, directory: pathlib.Path) -> bool:
    """Waits for the lock, which ends with the process; False where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.info("waiting for the process that makes the token cache %s", directory)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        # Some cluster file systems. Renaming keeps the result right; work is done twice.
        logging.warning("no file locks in %s: %s", directory.parent, error.strerror)
        return False
    return True


def _remove_leftovers(directory: pathlib.Path) -> None:
    """Removes what killed builders have left; the lock of `directory` must be held."""
    for path in directory.parent.glob("*.tmp"):
        match = re.fullmatch(r"([0-9a-f]{32})\.\d+\.(.+)\.tmp", path.name)
        if match is None:
            continue
        key, host = match.groups()
        # What vanishes meanwhile, or is locked, is not ours to remove.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            # Locks may hold on one machine only, so leave what another one still writes.
            if host != socket.gethostname() and time.time() - _last_write(path) < _ABANDONED:
                continue
            # Not our own lock file a second time: on NFS, closing that would end our lock.
            if key != directory.name:
                lock = stack.enter_context(path.with_name(f"{key}.lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def _last_write(directory: pathlib.Path) -> float:
    return max(path.stat().st_mtime for path in (directory, *directory.iterdir()))


# --- Several processes --------------------------------------------------------------------


def _encoded(
    chunks: Iterable[list[Pair]], encoder: _Encoder, num_processes: int
) -> Iterator[_Chunk]:
    """The chunks, encoded, in order."""
    if num_processes == 0:
        for number, pairs in enumerate(chunks):
            yield encoder(number, pairs, num_threads=_cpu_count())
        return
    pool = _worker_pool(encoder, num_processes)
    try:
        pending = collections.deque()
        for number, pairs in enumerate(chunks):
            pending.append(pool.submit(_work, number, pairs))
            if len(pending) == 2 * num_processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _worker_pool(encoder: _Encoder, num_processes: int) -> ProcessPoolExecutor:
    models = [tokenizer.model_bytes for tokenizer in encoder.tokenizers]
    return ProcessPoolExecutor(
        num_processes,
        # fork would copy the threads' locks of jax, as they happen to be.
        mp_context=_SpawnContext(),
        initializer=_start_worker,
        initargs=(models, encoder.limits, encoder.sampling_alpha),
    )


class _SpawnProcess(multiprocessing.context.SpawnProcess):
    def start(self):
        # A spawned process imports the main script: train.py, and with it jax. Ours do not
        # need it, so show it an empty one.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _SpawnContext(multiprocessing.context.SpawnContext):
    Process = _SpawnProcess


_worker_encoder: _Encoder | None = None


def _start_worker(
    models: list[bytes], limits: tuple[int | None, int | None], sampling_alpha: float
) -> None:
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    tokenizers = Tokenizers(*map(from_bytes, models))
    _worker_encoder = _Encoder(tokenizers, *limits, sampling_alpha)


def _exit_with_parent() -> None:
    # Otherwise workers wait for ever for the next chunk of a parent that was killed.
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(number: int, pairs: list[Pair]) -> _Chunk:
    return _worker_encoder(number, pairs, num_threads=1)


def _cpu_count() -> int:
    # Not os.cpu_count(): on a cluster a job may use a few of the machine's cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
