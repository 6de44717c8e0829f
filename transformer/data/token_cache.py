"""The cache of tokenised text: made once, kept on disk, opened quickly by every later run."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from absl import logging

from transformer.data.distinct_hashes import DistinctHashes
from transformer.data.pairs import PairSource
from transformer.data.token_files import TokenizedPairs, TokenWriter, drops, read
from transformer.data.token_workers import PairEncoder, encode
from transformer.data.tokenizers import Tokenizers
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.files import ABANDONED
from transformer.system.locks import lock_file
from transformer.system.paths import local
from transformer.system.terminal import signs_of_life

# Change it whenever the same text would give other files.
_FORMAT = 3
_CHUNK = 16_384  # pairs; random segmentation depends on it
# With fewer pairs, starting processes takes longer than they save.
_LARGE = 200_000
_LARGE_SAMPLED = 20_000
# One process reads for all, and cannot feed more.
_MOST_PROCESSES = 16


def token_cache(
    source: PairSource,
    encoder: PairEncoder,
    cache_dir: str | os.PathLike,
    *,
    num_samples: int = 1,
    num_processes: int | None = None,
) -> TokenizedPairs:
    """The tokenised pairs of a source: read from cache_dir, or made and kept there.

    num_samples: how many times the cache holds all pairs. With the encoder's sampling_alpha they
      are segmented, and so kept or dropped, differently each time.
    num_processes: processes that tokenise; 0 means this process, None chooses by the size of the
      source. The result is always the same.

    Any number of processes may call this at once with one cache_dir: one makes the files, the
    others wait and read. Files that were damaged on disk are made again, with a warning.
    Raises UserError when no pair is left, and when cache_dir cannot be written or is full.
    """
    # 1. The key of a cache is a hash of all that its content depends on.
    tokenizers, sampling_alpha = encoder.tokenizers, encoder.sampling_alpha
    hashes = source.fingerprint, tokenizers.source.sha256, tokenizers.target.sha256
    limits = *encoder.max_lengths, encoder.source_cut
    identity = [_FORMAT, *hashes, *limits, sampling_alpha, num_samples]
    if encoder.cleaning.filters:
        identity += [dataclasses.asdict(encoder.cleaning), encoder.tags]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    directory = Path(local(f"{cache_dir}/{key}", "the token cache"))
    if (found := _open(directory, tokenizers)) is not None:
        return found

    # 2. One process at a time makes it.
    if num_processes is None:
        is_large = len(source) * num_samples > (_LARGE_SAMPLED if sampling_alpha else _LARGE)
        num_processes = min(_MOST_PROCESSES, available_cores()) if is_large else 0
    with contextlib.ExitStack() as stack:
        with _write_errors(directory.parent):
            directory.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_file(directory.with_suffix(".lock"), wait=True))
        if (found := _open(directory, tokenizers, warn=True)) is not None:
            return found  # another process made it while this one waited
        shutil.rmtree(directory, ignore_errors=True)  # it is damaged
        _remove_leftovers(directory)
        _build(directory, source, num_samples, encoder, num_processes)
    if (found := _open(directory, tokenizers)) is None:
        raise UserError(f"cannot read the token cache {directory}, just written; check the disk")
    return found


def _open(directory: Path, tokenizers: Tokenizers, *, warn: bool = False) -> TokenizedPairs | None:
    """The cache in a directory; None if there is none or if it is damaged."""
    try:
        return read(directory, tokenizers.vocab_sizes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if warn and directory.exists():
            logging.warning("token cache %s is damaged and made again: %s", directory, error)
        return None


def _build(
    directory: Path, source: PairSource, num_samples: int, encoder: PairEncoder, num_processes: int
) -> None:
    """Writes the cache under a temporary name and renames it, so that it is whole or absent."""
    cache_dir, num_pairs = directory.parent, num_samples * len(source)
    times = f", {num_samples} times" if num_samples > 1 else ""
    logging.info("tokenising %s%s with %d processes", source.describe(), times, num_processes)
    chunks = chain.from_iterable(source.chunks(_CHUNK) for _ in range(num_samples))
    temporary = directory.with_suffix(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        with _write_errors(cache_dir):
            writer = TokenWriter(temporary, encoder.tokenizers.vocab_sizes)
        told = signs_of_life(
            f"tokenising {num_pairs:,} pairs", lambda: f"{writer.num_seen / num_pairs:.0%} done"
        )
        with told, writer, contextlib.closing(encode(chunks, encoder, num_processes)) as encoded:
            for chunk in encoded:
                done = writer.num_seen
                if chunk.hashes is not None:
                    if done % len(source) == 0:  # another sample of all pairs
                        seen = DistinctHashes()
                    chunk = chunk.only(seen.add(chunk.hashes))
                with _write_errors(cache_dir, writer.num_bytes * num_pairs // done if done else 0):
                    writer.append(chunk)
            if writer.num_pairs == 0:
                counts = ", ".join(f"{name}: {x}" for name, x in drops(writer.counts).items())
                filters = ", and docs/cleaning.md" if encoder.cleaning.filters else ""
                raise UserError(
                    f"no pair is left of {source.describe()}{times} ({counts}); see "
                    f"data.max_source_length and data.max_target_length{filters}"
                )
            with _write_errors(cache_dir, writer.num_bytes):
                writer.finish()
        with _write_errors(cache_dir):
            temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """Removes leftovers of killed builders, of the cache whose lock we hold and of others."""
    for path in directory.parent.glob("[0-9a-f]" * 32 + ".*.tmp"):
        with contextlib.suppress(OSError):  # it may vanish meanwhile
            written = max(file.stat().st_mtime for file in (path, *path.iterdir()))
            if path.name.startswith(directory.name) or time.time() - written > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _write_errors(cache_dir: Path, num_bytes: int = 0) -> Iterator[None]:
    """Turns a failing write into a UserError. num_bytes: needed in total, 0 if unknown."""
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
