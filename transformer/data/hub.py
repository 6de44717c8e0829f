"""Data sets of the Hugging Face hub in their Parquet form, by names such as hf:wmt/wmt14:de-en.

A name is hf:REPOSITORY, with :CONFIG and @REVISION if wanted. Files come through the cache of
huggingface_hub, which has variables: HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN. This module
never sees a token.
"""

import contextlib
import errno
import fnmatch
import functools
import glob
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from transformer.data.records import file_sha256
from transformer.system.errors import UserError, nearest
from transformer.system.packages import optional_module
from transformer.system.paths import cannot_read, local, looked_up
from transformer.system.reading import read_text
from transformer.system.terminal import say, signs_of_life, transfer_in_words

PREFIX = "hf:"
_NAME = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([^@]+))?(?:@(\S+))?")
_CONVERTED = "refs/convert/parquet"  # the hub's own branch of most data sets
_README = "README.md"
# Such as de-en/train-00000-of-00003.parquet, data/train-00000-of-00001-0a1b.parquet, and
# default/train/0000.parquet of the hub's own branch.
_SHARD = re.compile(
    r"(?:(?P<config>[^/]+)/)?(?P<split>(?:partial-)?[A-Za-z_]\w*(?:\.\w+)*)"
    r"(?:-\d+-of-\d+(?:-[0-9a-f]+)?|/\d+)?\.parquet"
)
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # seconds before the next try at a busy hub

Layout = dict[str, dict[str, list[str]]]  # config -> split -> paths of Parquet files

commits: dict[str, str] = {}  # of the data sets that this process has opened, by name


class HubDataset(NamedTuple):
    """One config of a data set. fetch: brings files here, and returns their folder."""

    name: str
    splits: Mapping[str, list[str]]
    fetch: Callable[[Sequence[str]], Path]

    def files(self, split: str, field: str) -> list[str]:
        """The files of a split, on this machine; raises UserError for anything wrong with them.

        field: the config field that names the split, for messages.
        """
        if split not in self.splits:
            raise UserError(
                f"{field} is {split!r}, which {self.name} does not have; "
                f"{nearest(split, self.splits)}"
            )
        paths = self.splits[split]
        if (shard := re.search(r"-\d+-of-(\d+)", paths[0])) and int(shard[1]) != len(paths):
            raise UserError(
                f"{self.name}: {paths[0]} is one of {int(shard[1])} files of {split}, and there "
                f"are {len(paths)}; copy the whole folder again"
            )
        folder = self.fetch(paths)
        for path in paths:
            _check(folder / path)
        return [str(folder / path) for path in paths]


@functools.cache  # all splits of a run are of one commit
def open_hub(name: str, folder: str | None = None) -> HubDataset:
    """The data set of that name; raises UserError if there is none that can be read.

    folder: a copy of its repository, which is read instead.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise UserError(
            f"data.dataset is {name!r}; name a data set of the hub as hf:REPOSITORY:CONFIG, such "
            "as hf:wmt/wmt14:de-en"
        )
    repository, config, revision = match.groups()
    first: Layout = {}
    for commit, paths, fetch in _copies(repository, revision, folder):
        readme = read_text(fetch([_README]) / _README, None) if _README in paths else ""
        configs = layout(paths, readme, name)
        first = first or configs
        wanted = config or (next(iter(configs), "") if len(configs) == 1 else "default")
        if wanted in configs:
            if commit:
                commits[name] = commit
            return HubDataset(name, configs[wanted], fetch)
    if not first:
        where = folder or f"this revision, nor in {_CONVERTED}"
        raise UserError(
            f"{name} has no Parquet files in {where}; convert it, or give files as data.train_file"
        )
    advice = nearest(config, first) if config else f"choose one of {', '.join(first)}"
    raise UserError(f"{name} has no config {config or 'default'!r}; {advice}")


def revisions() -> dict[str, dict[str, str]]:
    """The commits of the data sets that this process has read, as records keep them."""
    return {"hub": dict(commits)} if commits else {}


def layout(paths: Sequence[str], readme: str, name: str) -> Layout:
    """The Parquet files of a repository, as its README says; else as their own names say."""
    parquet = sorted(path for path in paths if path.endswith(".parquet"))
    found: Layout = {}
    for config, split, pattern in _declared(readme, name):
        if files := [path for path in parquet if _matches(path, pattern)]:
            known = found.setdefault(config, {}).setdefault(split, [])
            known += [path for path in files if path not in known]
    if found:
        return found
    for path in parquet:
        if shard := _SHARD.fullmatch(path):
            config = "default" if shard["config"] in (None, "data") else shard["config"]
            found.setdefault(config, {}).setdefault(shard["split"], []).append(path)
    return found


def _declared(readme: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Config, split and pattern of files, from the README's metadata."""
    import yaml  # comes with huggingface_hub

    if not (block := re.match(r"---\s*\n(.*?)\n---\s*(?:\n|$)", readme, re.DOTALL)):
        return
    try:
        for config in (yaml.safe_load(block[1]) or {}).get("configs") or ():
            files = config.get("data_files", ())
            if isinstance(files, Mapping):
                parts = list(files.items())
            elif isinstance(files, str) or not all(isinstance(x, Mapping) for x in files):
                parts = [("train", files)]
            else:
                parts = [(part["split"], part["path"]) for part in files]
            names = [str(config["config_name"]), *(["default"] if config.get("default") else [])]
            for split, patterns in parts:
                for pattern in [patterns] if isinstance(patterns, str) else patterns:
                    place = posixpath.normpath(posixpath.join(config.get("data_dir", ""), pattern))
                    yield from ((known, str(split), place) for known in names)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name}: the metadata of {_README} is damaged ({reason:.80})") from error


def _matches(path: str, pattern: str) -> bool:
    """True if a pattern means a path: * stays within a folder, ** does not."""
    is_deep = "**" in pattern or path.count("/") == pattern.count("/")
    return is_deep and fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))


Copy = tuple[str | None, list[str], Callable[[Sequence[str]], Path]]


def _copies(repository: str, revision: str | None, folder: str | None) -> Iterator[Copy]:
    """Where a data set may lie: commit, paths of files, and what brings them here."""
    if folder:
        top = Path(local(folder, "data.raw_dir"))
        if not top.is_dir():
            raise UserError(f"data.raw_dir: there is no folder {top}{looked_up(top)}")
        yield None, _files_below(top), lambda _: top
        return
    hub = optional_module("huggingface_hub")
    for known in [revision] if revision else ["main", _CONVERTED]:
        try:
            snapshot = _download(hub, repository, known, [_README])
        except hub.errors.RevisionNotFoundError as error:
            if known == _CONVERTED:
                return
            raise UserError(f"the hub has no revision {known!r} of {repository}") from error
        commit = snapshot.name
        try:
            tree = hub.get_cached_repo_tree(repository, repo_type="dataset", revision=commit)
            paths = [file.path for file in tree]
        except hub.errors.CachedRepoTreeNotFoundError:  # an earlier client has filled the cache
            paths = _files_below(snapshot)
        yield commit, paths, functools.partial(_download, hub, repository, commit)


def _files_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _download(hub: Any, repository: str, revision: str, paths: Sequence[str]) -> Path:
    """Brings files into the hub's cache, unless they are there; returns their folder."""
    bars, start = [], time.monotonic()

    class Bar(tqdm):
        """Counts, and shows nothing."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})
            if options.get("unit") == "B":
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0

    def words() -> str:
        done, total = (max(getattr(bar, x) or 0 for bar in bars) for x in ("n", "total"))
        return transfer_in_words(int(done), int(total), start)

    what = {"repo_type": "dataset", "revision": revision, "tqdm_class": Bar}
    what["allow_patterns"] = [glob.escape(path) for path in paths]
    pauses = iter(_PAUSES)
    with signs_of_life(f"downloading {repository}", words), _quiet(hub):
        while True:
            try:
                return Path(hub.snapshot_download(repository, **what))
            except hub.errors.RevisionNotFoundError:
                raise
            except Exception as error:  # of its HTTP library, too, which has changed
                is_busy = _status(error) in (408, 429) or _status(error) >= 500
                if not is_busy or not (pause := next(pauses, 0)):
                    raise _explained(hub, repository, error) from error
            say(f"warning: the hub is busy; {repository} is tried again in {pause:.0f} s")
            time.sleep(pause)


@contextlib.contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Silences the client's warnings: they may show addresses with a signature."""
    level = hub.logging.get_verbosity()
    hub.logging.set_verbosity_error()
    try:
        yield
    finally:
        hub.logging.set_verbosity(level)


def _status(error: BaseException | None) -> int:
    """The HTTP status that a client's error is about; 0 if none."""
    while error is not None and getattr(error, "response", None) is None:
        error = error.__cause__
    return error.response.status_code if error else 0


def _explained(hub: Any, repository: str, error: Exception) -> UserError:
    """The client's error in our words, without addresses: these may hold secrets."""
    errors, name = hub.errors, f"the data set {repository}"
    if isinstance(error, errors.HFValidationError):
        return UserError(f"{repository!r} is no name of a data set; give one such as wmt/wmt14")
    if isinstance(error, errors.GatedRepoError):
        return UserError(
            f"{name} is gated: accept its terms on its page of the hub, and give the token of your "
            "account as HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or _status(error) in (401, 403):
        return UserError(
            f"the hub shows no data set {repository}; check the name, and for a private one give a "
            "token that may read it as HF_TOKEN"
        )
    if hub.constants.is_offline_mode():
        return UserError(
            f"{name} is not whole in the cache {hub.constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is "
            "set; unset it, or copy the cache from a machine where it is"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"no space left for {name} in {hub.constants.HF_HUB_CACHE}; free some, or set HF_HOME"
        )
    what = f"answers {_status(error)}" if _status(error) else "cannot be reached"
    return UserError(
        f"{name} could not be downloaded: the hub {what} ({type(error).__name__}); run again "
        "later: files that are complete stay"
    )


def _check(file: Path) -> None:
    """Raises UserError for a file that is not what the hub has."""
    # In the cache it is a link to a file that is named by its hash.
    expected = file.readlink().name if file.is_symlink() else ""
    try:
        with file.open("rb") as content:
            if content.read(20).startswith(b"version https://git-"):
                raise UserError(f"{file} only points to a file of Git LFS; run git lfs pull there")
        if re.fullmatch("[0-9a-f]{64}", expected) and file_sha256(file) != expected:
            raise UserError(
                f"{file.resolve()} is damaged: the hub has a file with another hash; delete it and "
                "run again"
            )
    except OSError as error:
        raise cannot_read(file, error) from error
