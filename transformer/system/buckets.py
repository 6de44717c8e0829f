"""Addresses of buckets, gs:// and s3://: copies on this machine of what lies there.

All code works on local files. `fetch` brings down what lies at an address, into a folder of this
process; `push` uploads what has changed since. The bucket decides: the next process begins with
what was uploaded, and the folder goes with its process.

A checkpoint's arrays are brought down only when one is restored, and leave the disk once they are
uploaded. Its record is uploaded last and removed first: a checkpoint without one is half-written,
and nobody takes it. metrics.jsonl goes up before the scores and the record that rely on it.
"""

import atexit
import contextlib
import glob
import importlib.util
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformer.system import terminal
from transformer.system.errors import UserError
from transformer.system.files import (
    leftovers_of,
    remove_leftovers,
    temporary_beside,
    user_caches,
)

PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}  # of the extra `cloud`, by scheme
_AT_ONCE = 8  # files on their way
_SMALL = 1 << 26  # bytes; smaller files are read at once, as they may grow meanwhile
LEASE = "lock"  # the object that says who holds a folder: see locks.py
# Groups: the folder of a checkpoint; the item that a file is of, if it is one of arrays.
_STEP = re.compile(
    r"(.*/checkpoints/\d+/)(?:(params|opt_state|extra|ema)/|record/|[a-z]+_success|scores.json|_)"
)
_DAMAGED = re.compile(r".*/checkpoints/\d+\.damaged/")
_RECORD = "record/record.json"
# The last of the files that belong together, in this order; others go before them.
_LAST = "files.json", "meta.json", "dataset_info.json", "scores.json", "record.json"
_PASSING = re.compile(r"lock|.*\.(lock|tmp|deleted|export)|.*\.orbax-checkpoint-tmp.*")

_root: Path | None = None  # the folder of this process: _root/gs/BUCKET/PATH
_fetched: set[str] = set()  # addresses
_known: dict[Path, Any] = {}  # what the bucket has: the version by which to tell a change
_synced: dict[Path, tuple[int, int]] = {}  # size and time of a file that the bucket has like this
_leases: dict[Path, Callable[[], None]] = {}  # folders of this process; raises LeaseLost
_pusher = ThreadPoolExecutor(1)  # uploads, one after the other
_OURS = object()  # a version that this process has uploaded
_lost: "LeaseLost | None" = None


class LeaseLost(UserError):
    """Another process has taken a folder that this one held."""


def is_address(name: str) -> bool:
    return name.partition("://")[0] in PACKAGES and "://" in name


def check_address(name: str, what: str) -> None:
    """Raises UserError for an address that cannot be used; asks no bucket.

    what: the name of the flag or field in messages.
    """
    scheme, _, rest = name.partition("://")
    if rest[:1] in ("", "/") or {".", ".."} & set(rest.split("/")):
        raise UserError(f"{what} is {name}, which is no address; give one such as gs://bucket/runs")
    if importlib.util.find_spec(PACKAGES[scheme]) is None:
        raise UserError(
            f"{what} is {name}, and {PACKAGES[scheme]} is not installed; pip install "
            "'transformer[cloud]', or give a local path (of a bucket, where it is mounted)"
        )


def address_of(path: Path) -> str:
    """The address of a local copy; any other path as it is."""
    if _root is None or not path.is_relative_to(_root):
        return str(path)
    scheme, *rest = path.relative_to(_root).parts
    return f"{scheme}://{'/'.join(rest)}"


def fetch(address: str, *, arrays: Collection[str] = (), again: bool = False) -> Path:
    """The local copy of what lies at an address: a file, a folder, the matches of a pattern.

    It is there afterwards, if the bucket has it. Each address is brought down once.

    arrays: items of checkpoints, such as params, whose arrays are needed. again: whether to look
      for what is new in the bucket.
    Raises UserError if the bucket cannot be read.
    """
    place = _place(address := address.rstrip("/"))
    if address in _fetched and not (arrays or again):
        return place
    with errors(f"cannot read {address}"):
        for attempt in itertools.count():
            try:
                _bring(address, place, arrays)
                break
            except FileNotFoundError:  # a run may remove a checkpoint meanwhile
                if attempt == 3:
                    raise
    if not arrays:
        _fetched.add(address)
    return place


def fetch_arrays(checkpoint: Path, items: Collection[str]) -> None:
    """Brings down arrays of a checkpoint, if its folder is the copy of one in a bucket."""
    if _root is not None and checkpoint.is_relative_to(_root):
        fetch(address_of(checkpoint), arrays=items)


def fetch_again() -> None:
    """Brings down what another process has put at the addresses of this one."""
    for address in list(_fetched):
        fetch(address, again=True)


def push() -> None:
    """Uploads what has changed; raises UserError if that fails, and the next call tries again."""
    if _fetched:
        _pusher.submit(_push).result()


def push_soon() -> None:
    """Begins a `push` in the background; if it fails, there is a warning."""
    if _lost:
        raise _lost
    if _fetched:
        _pusher.submit(_try_to_push)


def is_pushed() -> bool:
    """True if all is uploaded by now; else there is a warning."""
    done = not _fetched or _pusher.submit(_try_to_push).result()
    if _lost:
        raise _lost
    return done


@contextlib.contextmanager
def held(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """This process alone writes to the copy of a folder: what it removes goes from the bucket too.

    check: called before each upload; raises LeaseLost if the folder is another's by now.
    """
    fetch(address_of(folder), again=True)  # another run may have ended just now
    _leases[folder] = check
    try:
        yield
    finally:
        _leases.pop(folder, None)


# --- Down ---------------------------------------------------------------------------------


def _place(address: str) -> Path:
    global _root
    scheme, _, rest = address.partition("://")
    if _root is None:
        base = (user_caches() or Path("transformer-jax").absolute()) / "bucket"
        remove_leftovers(leftovers_of(base))
        _root = temporary_beside(base)
        _root.mkdir(parents=True)
        atexit.register(shutil.rmtree, _root, ignore_errors=True)
    terminal.show_as(f"{_root}/{scheme}/", f"{scheme}://")
    return _root / scheme / rest


def _bring(address: str, place: Path, arrays: Collection[str]) -> None:
    files = system(address)
    scheme, _, top = address.partition("://")
    is_pattern = glob.has_magic(top)
    found = files.glob(top, detail=True) if is_pattern else files.find(top, detail=True)
    for folder in [key for key, info in found.items() if info["type"] == "directory"]:
        found |= files.find(folder, detail=True)
    listed = {}
    for key, info in found.items():
        path = _root / scheme / key.strip("/")
        if ".." in path.parts:
            raise UserError(f"{scheme}://{key} is no name of a file; remove it")
        if info["type"] == "file" and not key.endswith("/") and not _DAMAGED.match(key):
            listed[path] = key, _version(info)
    wanted = {}
    for path, (key, version) in listed.items():
        step = _STEP.match(str(path))
        if path.name == LEASE or (path in _known and _known[path] in (_OURS, version)):
            is_here = path.exists() or path.name == LEASE
        else:
            is_here = False
            _known[path] = version
        if step and Path(step[1] + _RECORD) not in listed:
            continue  # half-written
        if not is_here and (not (step and step[2]) or step[2] in arrays):
            wanted[path] = key
    if not is_pattern:
        for path in [x for x in list(_known) if x.is_relative_to(place) and x not in listed]:
            if _known[path] is not _OURS:  # it is gone
                del _known[path]
                path.unlink(missing_ok=True)
                if path.parts[-2:] == tuple(_RECORD.split("/")):
                    shutil.rmtree(path.parent.parent, ignore_errors=True)

    def download(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.get_file(wanted[path], str(path))
        _synced[path] = _stamp(path)

    with terminal.signs_of_life(f"downloading {len(wanted)} files of {address}"):
        _in_threads(download, wanted)


def _version(info: dict[str, Any]) -> str:
    names = "generation", "ETag", "etag", "mtime", "created"
    return f"{info['size']} {next((info[name] for name in names if name in info), '')}"


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _in_threads(work: Callable[[Path], None], paths: Iterable[Path]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(work, paths):
            pass


def system(address: str) -> Any:
    """The fsspec file system of an address."""
    # gcsfs would ask for the kind of each bucket over gRPC, and wait minutes where that is shut.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec

    for name in PACKAGES.values():  # errors are raised as well
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return fsspec.filesystem(address.partition("://")[0], use_listings_cache=False)


@contextlib.contextmanager
def errors(said: str) -> Iterator[None]:
    """Turns an error of a bucket, which may be of many types, into a UserError."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        refused = re.search(r"\b40[13]\b|[Ff]orbidden|denied", reason)
        if isinstance(error, PermissionError) or refused:
            reason = f"no permission ({reason:.150})"
        elif isinstance(error, FileNotFoundError):
            reason = f"there is no such bucket, or it went away ({reason:.150})"
        raise UserError(
            f"{said}: {reason:.250}; check the address, the credentials and the connection"
        ) from error


# --- Up -----------------------------------------------------------------------------------


def _try_to_push() -> bool:
    global _lost
    try:
        _push()
        return True
    except LeaseLost as error:
        _lost = error
    except UserError as error:
        terminal.say(f"warning: {error}; the work goes on, and the next checkpoint tries again")
    return False


def _push() -> None:
    for check in list(_leases.values()):
        check()
    changed = []
    for place in map(_place, list(_fetched)):
        for path in _files_below(place):
            with contextlib.suppress(FileNotFoundError):  # a passing file
                if _synced.get(path) != _stamp(path):
                    changed.append(path)

    def rank(path: Path) -> int:
        return _LAST.index(path.name) if path.name in _LAST else -1

    for _, group in itertools.groupby(sorted(set(changed), key=rank), key=rank):
        _in_threads(_upload, group)
    ours = [path for path in list(_known) if any(map(path.is_relative_to, _leases))]
    for path in sorted(filter(_is_gone, ours), key=lambda path: path.name != "record.json"):
        with errors(f"cannot remove {address_of(path)}"):
            with contextlib.suppress(FileNotFoundError):
                system(address_of(path)).rm_file(address_of(path))
            del _known[path]


def _files_below(place: Path) -> Iterator[Path]:
    if place.is_file():  # named by the user: any ending will do
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not _PASSING.fullmatch(name)]
        for name in names:
            if not _PASSING.fullmatch(name) and not (path := Path(folder, name)).is_symlink():
                yield path


def _upload(path: Path) -> None:
    address = address_of(path)
    files, step = system(address), _STEP.match(str(path))
    is_array = step and step[2]
    with errors(f"cannot write {address}"):
        try:
            stamp = _stamp(path)  # before it is read
            if is_array or stamp[0] > _SMALL:
                files.put_file(str(path), address)
            else:
                files.pipe_file(address, path.read_bytes())
        except FileNotFoundError:
            if path.exists():
                raise
            return  # a checkpoint that is no longer needed; its record will not be there either
    _known[path], _synced[path] = _OURS, stamp
    if is_array:
        path.unlink(missing_ok=True)


def _is_gone(path: Path) -> bool:
    """True if a file was removed here; arrays are only if their checkpoint was."""
    step = _STEP.match(str(path))
    of = Path(step[1]) if step and step[2] else path
    return path.name != LEASE and not of.exists()
