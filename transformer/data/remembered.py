"""Facts about large data that take long to find, kept in the user's cache folder.

Such are the hashes of files, tokenizers and the rows of batches. What takes less than `_WORTH`
seconds to find is found again each time, so that small data leave nothing behind.
"""

import contextlib
import hashlib
import json
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer.system.files import temporary_beside, user_caches

Facts = dict[str, Any]  # arrays, numbers, texts; found again, all are arrays

_WORTH = 3.0  # seconds
_MOST_BYTES = 4 << 30  # of all facts; those that were not used for longest go
_SETTLED = 2.0  # seconds: a file may change twice in one tick of its time stamps
_COUNT = "count of arrays"  # in each file; a damaged one may lack arrays and be a zip file still
_DAMAGED = OSError, ValueError, EOFError, LookupError, RuntimeError, zipfile.BadZipFile


def remembered(
    key: Sequence[Any], make: Callable[[], Facts], may_keep: Callable[[], bool] = lambda: True
) -> Facts:
    """The result of `make`, or what it was for an equal key.

    key: JSON values, all that the result depends on. may_keep: is asked once it is made. The folder
    is no place to lose a run for: what cannot be read there is made, and what cannot be written is
    not kept.
    """
    import numpy as np  # here: some of those that import this module do without

    if (caches := user_caches()) is None:
        return make()
    path = caches / "data" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.npz"
    with contextlib.suppress(*_DAMAGED):
        # NumPy checks the CRC of what it reads. It leaves a damaged file open that it has opened.
        with path.open("rb") as opened, np.load(opened) as file:
            found = dict(file)
        if int(found.pop(_COUNT)) == len(found):
            os.utime(path)
            return found
    start = time.monotonic()
    found = make()
    if time.monotonic() - start >= _WORTH and may_keep():
        with contextlib.suppress(OSError):
            _keep(path, found)
    return found


def of_file(path: str, key: Sequence[Any], make: Callable[[], Facts]) -> Facts:
    """`remembered` for facts about the content of a file that is not written to meanwhile.

    A file counts as the same while its size, time stamps and place on the disk stay.
    """
    before = _identity(path)
    if before is None or time.time() - max(before[-2:]) / 1e9 < _SETTLED:
        return make()
    whole_key = [*key, os.path.realpath(path), *before]
    return remembered(whole_key, make, may_keep=lambda: _identity(path) == before)


def _identity(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _keep(path: Path, found: Facts) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            np.savez(file, **found, **{_COUNT: np.array(len(found))})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    room = _MOST_BYTES
    for other in sorted(path.parent.iterdir(), key=lambda x: x.stat().st_mtime, reverse=True):
        room -= other.stat().st_size
        if room < 0 and other != path:
            other.unlink(missing_ok=True)
