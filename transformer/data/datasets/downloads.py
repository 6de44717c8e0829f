"""The progress of TFDS's downloads, which run in threads of its own."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow_datasets.core.download import downloader

from transformer.system.terminal import transfer_in_words


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
        with self._lock:
            return transfer_in_words(self._done, self._total, self._start)

    def _count(self, block: bytes) -> bytes:
        with self._lock:
            self._done += len(block)
        return block
