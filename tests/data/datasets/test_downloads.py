"""What is said of a download while it lasts."""

import functools
import gzip
import hashlib
import http.server
import random
import re
import threading
import time

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

from transformer.data import datasets
from transformer.data.datasets import multi30k
from transformer.system import terminal

BLOCKS, PAUSE = 20, 0.05  # of an answer, which takes a second


def zipped_text() -> bytes:
    numbers = random.Random(3)
    lines = (f"{numbers.random()}\n" for _ in range(5000))  # TFDS reads 16 kB at once
    return gzip.compress("".join(lines).encode(), mtime=0)


@pytest.fixture(params=["with a length", "without"])
def slow_multi30k(request, monkeypatch):
    """Multi30k of one split, on a slow server on the loopback address; gives the size in bytes."""
    content = zipped_text()

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            if request.param == "with a length":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            size = -(-len(content) // BLOCKS)
            for start in range(0, len(content), size):
                self.wfile.write(content[start : start + size])
                time.sleep(PAUSE)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        urls = [f"http://127.0.0.1:{server.server_port}/train.{x}.gz" for x in ("en", "de")]
        digest = hashlib.sha256(content).hexdigest()
        size = tfds.core.utils.Size(len(content))
        infos = {url: checksums.UrlInfo(size, digest, url.rpartition("/")[2]) for url in urls}
        monkeypatch.setattr(checksums, "get_all_url_infos", lambda: infos)
        monkeypatch.setattr(multi30k.Multi30k, "url_infos", infos)
        monkeypatch.setattr(multi30k, "urls", lambda config: {"train": urls})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield 2 * len(content), request.param
        server.shutdown()
        thread.join()


def prepare(folder, monkeypatch, seconds: float) -> None:
    often = functools.partial(terminal.signs_of_life, seconds=seconds)
    monkeypatch.setattr(datasets, "signs_of_life", often)
    datasets.prepare(datasets.get_builder("multi30k/en-de", data_dir=str(folder)))


def test_lines_of_a_slow_download(slow_multi30k, tmp_path, monkeypatch, capsys):
    total, kind = slow_multi30k
    prepare(tmp_path, monkeypatch, seconds=0.05)
    out, err = capsys.readouterr()
    assert out == ""
    size = r"([\d.]+)kB"
    known = {"with a length": r" of [\d.]+kB", "without": ""}[kind]
    left = r", 00:0\d left" if known else ""
    so_far = rf"(?:, {size}{known} downloaded, [\d.]+[kM]?B/s{left})?"
    line = re.compile(rf"preparing multi30k/en-de/1\.0\.0: \d+ s{so_far}")
    found = [line.fullmatch(line_of) for line_of in err.splitlines()]
    assert all(found), err
    sizes = [float(match[1]) for match in found if match[1]]
    assert sizes == sorted(sizes)
    assert len({*sizes}) > 3
    assert sizes[-1] == round(total / 1e3, 1)  # while examples are written
