"""The progress of TFDS's downloads, which run in threads of its own."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow_datasets.core.download import downloader
from tqdm import tqdm

_OF_KNOWN = "{n_fmt}B of {total_fmt}B downloaded, {rate_fmt}, {remaining} left"
_OF_UNKNOWN = "{n_fmt}B downloaded, {rate_fmt}"


class Downloads:
    """Counts the bytes that TFDS downloads while `counted` lasts."""

    def __init__(self):
        self._lock = threading.Lock()
        self._start = 0.0
        self._done = self._total = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        open_url = downloader._open_url

        @contextlib.contextmanager
        def counting(url: str, **options: Any) -> Iterator[tuple[Any, Iterable[bytes]]]:
            with open_url(url, **options) as (response, blocks):
                length = str(response.headers.get("Content-Length", ""))
                with self._lock:
                    self._start = self._start or time.monotonic()
                    self._total += int(length) if length.isdecimal() else 0
                yield response, map(self._count, blocks)

        downloader._open_url = counting
        try:
            yield
        finally:
            downloader._open_url = open_url

    def words(self) -> str:
        """Text such as "12.0MB of 346MB downloaded, 1.2MB/s, 04:38 left"; "" at first."""
        with self._lock:
            done, total = self._done, self._total
        if not done:
            return ""
        shape = _OF_KNOWN if done <= total else _OF_UNKNOWN
        elapsed = time.monotonic() - self._start
        return tqdm.format_meter(done, total, elapsed, unit="B", unit_scale=True, bar_format=shape)

    def _count(self, block: bytes) -> bytes:
        with self._lock:
            self._done += len(block)
        return block
