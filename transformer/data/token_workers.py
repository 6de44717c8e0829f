"""Encoding of text pairs as token ids, in this process or in several."""

import dataclasses
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from typing import Self

import numpy as np

from transformer.data.cleaning import OFF, Cleaning, hash_of, reason
from transformer.data.pairs import Pair
from transformer.data.prefetch import in_order
from transformer.data.token_files import COUNTED, Chunk, token_dtype
from transformer.data.tokenizers import Tokenizers, from_bytes
from transformer.data.vocabulary import EOS
from transformer.data.words import words_of
from transformer.system.cpu import available_cores


@dataclasses.dataclass(frozen=True)
class PairEncoder:
    """Tokenises pairs, and drops those that are blank or too long, and noisy ones.

    max_lengths: of source and target, in tokens, EOS included. With None and None every pair
      is kept; an empty line is then only EOS.
    sampling_alpha: if not 0, segments at random; see Tokenizer.sample_batch.
    source_cut: longer sources are cut to this many tokens, EOS included.
    cleaning, tags: the filters, which take no tag for a part of a source. Duplicates are not
      dropped here, but their hashes tell them.
    """

    tokenizers: Tokenizers
    max_lengths: tuple[int | None, int | None] = (None, None)
    sampling_alpha: float = 0.0
    source_cut: int | None = None
    cleaning: Cleaning = OFF
    tags: tuple[str, ...] = ()

    def for_languages(self, languages: Mapping[str, str]) -> Self:
        """The encoder of a corpus with languages of its own: see sources.Part."""
        if languages:
            self.tokenizers.check_languages(f"data.{min(languages).rpartition('.')[0]}")
        return dataclasses.replace(self, tokenizers=self.tokenizers.for_languages(languages))

    def __call__(self, number: int, pairs: list[Pair], num_threads: int) -> Chunk:
        """Encodes a chunk; its number seeds random segmentation."""
        filters = self.cleaning.filters
        counts = dict.fromkeys((*COUNTED, *filters), 0)
        batches = []
        for side, tokenizer in enumerate(self.tokenizers):
            texts = [pair[side] for pair in pairs]
            if self.sampling_alpha:
                seed = 2 * number + side
                batches.append(tokenizer.sample_batch(texts, self.sampling_alpha, seed))
            else:
                batches.append(tokenizer.encode_batch(texts, num_threads))
        max_source, max_target = (
            float("inf") if limit is None else limit - 1 for limit in self.max_lengths
        )
        sources, targets, hashes = [], [], []
        for pair, source, target in zip(pairs, *batches, strict=True):
            if self.max_lengths != (None, None):
                # A tokenizer that normalises may leave nothing of a line that has text.
                if not (source and target and pair[0].strip() and pair[1].strip()):
                    counts["empty"] += 1
                    continue
                if len(source) > max_source and not self.source_cut:
                    counts["source_too_long"] += 1
                    continue
                if len(target) > max_target:
                    counts["target_too_long"] += 1
                    continue
            if filters:
                words, lengths = [*map(words_of, pair)], [len(source), len(target)]
                if why := reason(self.cleaning, self.tags, words, lengths):
                    counts[why] += 1
                    continue
                if "duplicate" in counts:
                    hashes.append(hash_of(self.cleaning, words))
            if self.source_cut and len(source) >= self.source_cut:
                counts["source_cut"] += 1
                source = source[: self.source_cut - 1]
            sources.append(source)
            targets.append(target)
        source_dtype, target_dtype = map(token_dtype, self.tokenizers.vocab_sizes)
        chunk = Chunk(*_flat(sources, source_dtype), *_flat(targets, target_dtype), counts)
        if "duplicate" in counts:
            chunk = chunk._replace(hashes=np.frombuffer(b"".join(hashes), np.uint64))
        return chunk


def _flat(sentences: list[list[int]], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The sentences one after the other, EOS appended to each; and their lengths."""
    for sentence in sentences:
        sentence.append(EOS)
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype, lengths.sum()), lengths


def encode(
    chunks: Iterable[list[Pair]], encoder: PairEncoder, num_processes: int
) -> Iterator[Chunk]:
    """Yields the encoded chunks in order. num_processes: besides this one; 0: only this one."""
    if num_processes == 0:
        for number, pairs in enumerate(chunks):
            yield encoder(number, pairs, num_threads=available_cores())
        return
    with worker_pool(encoder, num_processes) as pool:
        yield from in_order(pool, _work, enumerate(chunks), ahead=2 * num_processes - 1)


def worker_pool(encoder: PairEncoder, num_processes: int) -> ProcessPoolExecutor:
    models = [tokenizer.model_bytes for tokenizer in encoder.tokenizers]
    return ProcessPoolExecutor(
        num_processes,
        # fork would copy the locks of JAX's threads in their current state.
        mp_context=_SpawnContext(),
        initializer=_start_worker,
        initargs=(models, dataclasses.replace(encoder, tokenizers=None)),
    )


class _SpawnProcess(multiprocessing.context.SpawnProcess):
    def start(self):
        # A spawned process imports the main script: train.py, and with it JAX. Ours do not need
        # it, so they see an empty one.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _SpawnContext(multiprocessing.context.SpawnContext):
    Process = _SpawnProcess


_worker_encoder: PairEncoder | None = None


def _start_worker(models: list[bytes], encoder: PairEncoder) -> None:
    """encoder: without its tokenizers, which would not survive the way here."""
    global _worker_encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    tokenizers = Tokenizers(*map(from_bytes, models))
    _worker_encoder = dataclasses.replace(encoder, tokenizers=tokenizers)


def _exit_with_parent() -> None:
    # Otherwise workers wait for ever for the next chunk of a parent that was killed.
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(chunk: tuple[int, list[Pair]]) -> Chunk:
    return _worker_encoder(*chunk, num_threads=1)
