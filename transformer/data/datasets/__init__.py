"""Datasets of pairs by name, ours and those of TFDS, without TensorFlow.

builder = get_builder("multi30k/en-de", data_dir="data")
prepare(builder)
pairs = builder.as_data_source("train")
"""

import contextlib
import importlib.resources.abc
import io
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds
from absl import logging

from transformer.system.errors import UserError, nearest
from transformer.system.locks import lock_file
from transformer.system.terminal import signs_of_life, verbosity

# TFDS 4.9.10 finds its checksums with this package but does not require it. The standard
# library has the same.
try:
    import importlib_resources  # noqa: F401
except ModuleNotFoundError:
    sys.modules["importlib_resources"] = importlib.resources

_OURS = ("algorithmic", "babi", "grammar_en_de", "multi30k", "tatoeba_zh")
_FROM_FOLDERS = ("babi", "multi30k", "tatoeba_zh")  # read raw_dir
_LABELLED = ("glue", "super_glue")  # texts with classes
_BY_HAND = ("xsum",)  # TFDS cannot download all of them
_SUMMARIES = ("cnn_dailymail", "gigaword", "scientific_papers", "xsum")
# For the error message only: every other dataset of TFDS can be named, too.
_TRANSLATION = (
    *(f"wmt{year}_translate" for year in range(13, 20)),
    *("flores", "mtnt", "opus", "para_crawl", "ted_hrlr_translate"),
)


def get_builder(
    name: str, *, data_dir: str, raw_dir: str | None = None
) -> tfds.core.DatasetBuilder:
    """The builder of a dataset such as "grammar_en_de" or "wmt14_translate/de-en".

    It downloads and writes nothing: see prepare(). raw_dir is a folder with the files of Multi30k,
    Tatoeba or bAbI. Raises UserError for an unknown name or config, for a raw_dir that is wrong
    or that the dataset does not read, and for data in data_dir whose format needs TensorFlow.
    """
    if not re.fullmatch(r"\w+(/[\w.+-]+)?", name):  # TFDS takes paths and other hubs for names
        raise UserError(f"{name!r} is no name of a dataset; give one such as wmt14_translate/de-en")
    dataset, _, config = name.partition("/")
    cls = _builder_class(dataset)
    configs = [f"{dataset}/{known.name}" for known in cls.BUILDER_CONFIGS]
    if config and name not in configs:
        turned = f"{dataset}/{'-'.join(reversed(config.split('-')))}"  # a pair serves both ways
        advice = nearest(turned if turned in configs else name, configs or [dataset])
        raise UserError(f"unknown dataset {name!r}; {advice}")
    if len(configs) > 1 and not config:  # TFDS would take the first, Czech for WMT 2014
        raise UserError(f"dataset {name!r} needs a config; choose one of {', '.join(configs)}")
    if raw_dir and dataset not in (*_FROM_FOLDERS, *_BY_HAND):
        raise UserError(f"dataset {name!r} does not read raw_dir ({raw_dir}); leave it unset")
    folder = raw_dir if dataset in _FROM_FOLDERS else None
    given = {key: value for key, value in (("config", config), ("raw_dir", folder)) if value}
    try:
        with _quiet():
            return cls(**given, data_dir=data_dir, file_format="array_record")
    except ValueError as error:
        if "File format" not in str(error):
            raise
        raise UserError(
            f"{name} lies in {data_dir} in a format that needs TensorFlow, not in "
            "array_record; choose another data_dir"
        ) from error


def prepare(builder: tfds.core.DatasetBuilder, raw_dir: str | None = None) -> None:
    """Downloads the dataset and writes it to disk, if it is not there already.

    raw_dir: the user's folder with files that TFDS cannot download.

    Several processes may call this for one data_dir: one works, the others wait.
    Without a network TFDS tries for about three minutes.
    Raises UserError if the download fails or the data are wrong.
    """
    if not _is_prepared(builder):
        root = Path(builder.data_dir_root)
        root.mkdir(parents=True, exist_ok=True)
        # One lock for all datasets: they share the folder of the downloads.
        with lock_file(root / "prepare.lock", wait=True):
            if not _is_prepared(builder):
                _download_and_prepare(builder, raw_dir)
    if not builder.info.splits:  # another process has prepared it since builder was made
        builder.info.read_from_directory(builder.data_dir)


def _builder_class(dataset: str) -> type[tfds.core.DatasetBuilder]:
    # Importing a builder registers it; late, to keep the import of this package cheap.
    import tensorflow_datasets.translate

    if dataset in _LABELLED:
        import tensorflow_datasets.text
    if dataset in _SUMMARIES:
        import tensorflow_datasets.summarization
    if dataset not in (*_OURS, *_TRANSLATION, *_LABELLED, *_SUMMARIES):
        import tensorflow_datasets.image_classification  # noqa: F401
    import transformer.data.datasets.algorithmic
    import transformer.data.datasets.babi
    import transformer.data.datasets.grammar_en_de
    import transformer.data.datasets.multi30k
    import transformer.data.datasets.tatoeba_zh  # noqa: F401

    try:
        return tfds.builder_cls(dataset)
    except ValueError as error:  # DatasetNotFoundError, with a list of 200 names
        advice = nearest(dataset, (*_OURS, *_TRANSLATION, *_SUMMARIES))
        raise UserError(f"unknown dataset {dataset!r}; {advice}") from error


def _is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    with _quiet():  # it warns if not
        return builder.is_prepared()


def _download_and_prepare(builder: tfds.core.DatasetBuilder, raw_dir: str | None) -> None:
    from urllib.error import URLError

    # requests comes with TFDS, which downloads with it (and by FTP with urllib).
    from requests import RequestException
    from tensorflow_datasets.core.download import downloader, extractor
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    from transformer.data.datasets.downloads import Downloads
    from transformer.data.datasets.without_tensorflow import without_tensorflow

    if builder.data_path.exists():
        raise UserError(f"{builder.data_dir} holds no complete dataset; delete it, run again")
    # Leftovers of a killed process; we have the lock.
    for path in Path(builder.data_path.parent).glob(f"incomplete.*_{builder.data_path.name}"):
        shutil.rmtree(path)
    name, folder = builder.info.full_name, builder.data_dir_root / "downloads"
    # To unpack an archive TFDS needs two functions of TensorFlow. These replace them.
    extractor.tf = types.SimpleNamespace(
        compat=types.SimpleNamespace(as_text=str),
        io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
    )
    # For URLs other than HTTP it tries TensorFlow first, which cannot copy FTP (CWMT, in WMT17).
    downloader.tf = types.SimpleNamespace(
        errors=types.SimpleNamespace(UnimplementedError=NotImplementedError),
        io=types.SimpleNamespace(gfile=types.SimpleNamespace(copy=_cannot_copy)),
    )
    logging.info("preparing %s in %s", name, builder.data_dir)
    try:
        downloads = Downloads()
        told = signs_of_life(f"preparing {name}", downloads.words)
        with told, downloads.counted(), _quiet(), without_tensorflow(builder):
            given = raw_dir if builder.name in _BY_HAND else None
            by_hand = tfds.download.DownloadConfig(manual_dir=given) if given else None
            builder.download_and_prepare(download_config=by_hand)
    except NonMatchingChecksumError as error:
        raise UserError(
            f"a download of {name} was damaged, or has changed: {_first_line(error)} "
            f"delete it from {folder} and run again"
        ) from error
    except (RequestException, URLError, ConnectionError, tfds.download.DownloadError) as error:
        raise UserError(
            f"{name} could not be downloaded: {_first_line(error)}; run again with a network, "
            f"or copy {folder} from a machine where it worked"
        ) from error
    except (OSError, RuntimeError) as error:  # the latter is array_record's
        if "No space left" not in str(error):
            raise
        raise UserError(
            f"no space left for {name} in {builder.data_dir_root}; free some, or choose another "
            "data.data_dir"
        ) from error
    except AssertionError as error:
        if not re.search("manually download|Manual directory", str(error)):
            raise
        where = " (give its folder as data.raw_dir)" if builder.name in _BY_HAND else ""
        raise UserError(f"{name} is not complete{where}: {_first_line(error)}") from error


def _cannot_copy(source: str, _) -> None:
    raise NotImplementedError(source)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences TFDS's progress bars, banners on stdout, and log lines below errors."""
    tfds.disable_progress_bar()
    level = min(logging.get_verbosity(), logging.ERROR)
    with verbosity(level), contextlib.redirect_stdout(io.StringIO()):
        yield
