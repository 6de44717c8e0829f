"""Fabricated downloads, which TFDS unpacks and prepares as real ones."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums, downloader

from transformer.data.datasets import multi30k


def texts(builder, split: str, *languages: str) -> list[tuple[str, ...]]:
    """What a prepared data set has."""
    source = builder.as_data_source(split)
    records = source.__getitems__(list(range(len(source))))
    return [tuple(record[language].decode() for language in languages) for record in records]


def write_raw(folder: Path, files: dict[str, list[str]]) -> Path:
    """Writes files of these lines, compressed if their names say so."""
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def tgz(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


def zipped(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zip_:
        for name, text in files.items():
            zip_.writestr(name, text)
    return archive.getvalue()


class Internet(dict):
    """URL -> bytes; `infos` has their checksums. A server may call a file otherwise: `names`."""

    def __init__(self):
        self.infos, self.names = {}, {}

    def __setitem__(self, url, content):
        super().__setitem__(url, content)
        digest = hashlib.sha256(content).hexdigest()
        name = self.names.get(url, url.rpartition("/")[2])
        self.infos[url] = checksums.UrlInfo(tfds.core.utils.Size(len(content)), digest, name)


class Response(io.BytesIO):
    headers = {}


@pytest.fixture
def internet(monkeypatch):
    """What TFDS downloads from."""
    files = Internet()

    class Opened:
        def __init__(self, url, **_):
            if url not in files:
                raise requests.exceptions.ConnectionError(f"no route to {url}")
            self.response = Response(files[url])
            self.response.url = url
            if name := files.names.get(url):
                header = {"content-disposition": f'attachment; filename="{name}"'}
                self.response.headers = header

        def __enter__(self):
            return self.response, iter([self.response.getvalue()])

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(downloader, "_open_url", Opened)
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: files.infos)
    for cls in (multi30k.Multi30k, tfds.core.DatasetBuilder):
        monkeypatch.setattr(cls, "url_infos", files.infos)
    return files
