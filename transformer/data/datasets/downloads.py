"""The progress of TFDS's downloads, which run in threads of its own."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow_datasets.core.download import downloader
from tqdm import tqdm


class Downloads:
    """Counts the bytes that TFDS downloads while `counted` lasts."""

    def __init__(self):
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._done = self._total = self._open = 0
        self._is_total_known = True

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        open_url = downloader._open_url

        @contextlib.contextmanager
        def counting(url: str, **options: Any) -> Iterator[tuple[Any, Iterable[bytes]]]:
            with open_url(url, **options) as (response, blocks):
                self._begin(response.headers)
                try:
                    yield response, map(self._count, blocks)
                finally:
                    with self._lock:
                        self._open -= 1

        downloader._open_url = counting
        try:
            yield
        finally:
            downloader._open_url = open_url

    def words(self) -> str:
        """Text such as "12.0 MB of 345.6 MB downloaded, 1.2 MB/s, 04:38 left"; "" at first."""
        with self._lock:
            done, total, is_open = self._done, self._total, self._open
        rate = done / max(time.monotonic() - self._start, 1e-9)
        if not total and not done:
            return ""
        if not is_open:
            return f"{_size(done)} downloaded"
        if not self._is_total_known:
            return f"{_size(done)} downloaded, {_size(rate)}/s"
        left = tqdm.format_interval((total - done) / rate) if done else "?"
        return f"{_size(done)} of {_size(total)} downloaded, {_size(rate)}/s, {left} left"

    def _begin(self, headers: Any) -> None:
        length = str(headers.get("Content-Length", ""))
        with self._lock:
            if not self._total:
                self._start = time.monotonic()
            self._open += 1
            if length.isdecimal() and not headers.get("Content-Encoding"):  # unpacked, it is longer
                self._total += int(length)
            else:
                self._is_total_known = False

    def _count(self, block: bytes) -> bytes:
        with self._lock:
            self._done += len(block)
        return block


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"
