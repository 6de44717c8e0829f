"""A server on the loopback address that answers like the Hugging Face hub."""

import collections
import contextlib
import hashlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pyarrow
import pytest
from huggingface_hub import constants
from pyarrow import parquet

from transformer.data import hub


def table(classes: dict[str, list[str]] | None = None, **columns) -> bytes:
    """A Parquet file. classes: the names of the classes of columns with numbers."""
    file = io.BytesIO()
    features = {name: {"names": x, "_type": "ClassLabel"} for name, x in (classes or {}).items()}
    others = {name: {"dtype": "string", "_type": "Value"} for name in columns if not classes}
    metadata = {"huggingface": json.dumps({"info": {"features": others | features}})}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), file)
    return file.getvalue()


def translations(*pairs: tuple[str, str]) -> bytes:
    """A Parquet file of English and German, in the hub's form."""
    return table(translation=[{"en": en, "de": de} for en, de in pairs])


class Hub(ThreadingHTTPServer):
    """Repositories and faults.

    add(): a commit. private: repositories for the token "hf_secret" only; gated: for nobody.
    busy: how many requests are answered by 503; cut: paths whose next download ends early; damaged:
    paths whose content is not that of their hash. asked: method, path and headers so far.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refs, self.trees = collections.defaultdict(dict), {}
        self.private, self.gated, self.cut, self.damaged = set(), set(), set(), set()
        self.busy, self.asked = 0, []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.cdn = f"http://localhost:{self.server_port}/cdn"  # another host, as the real one

    def add(self, repo: str, files: dict[str, bytes | str], ref: str = "main") -> str:
        tree = {path: x.encode() if isinstance(x, str) else x for path, x in files.items()}
        commit = hashlib.sha1(repr(sorted(tree.items())).encode()).hexdigest()
        self.refs[repo][ref] = self.refs[repo][commit] = commit
        self.trees[commit] = tree
        return commit

    def downloads(self) -> list[str]:
        return [
            path.rpartition("/")[2] for method, path, _ in self.asked if path.startswith("/cdn/")
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, self.path.partition("?")[0]
        if path == "/api/agent-harnesses":  # of no use here
            return self._answer(404)
        hub.asked.append((self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        if hub.busy:
            hub.busy -= 1
            return self._answer(503)
        if path.startswith("/cdn/"):
            return self._content(*path.split("/")[2:4])
        api = path.startswith("/api/")
        words = path.removeprefix("/api").removeprefix("/datasets/").split("/")
        repo, rest = "/".join(words[:2]), words[2:]
        if repo not in hub.refs or (repo in hub.private and "hf_secret" not in self._token()):
            return self._answer(404 if self._token() else 401, {"X-Error-Code": "RepoNotFound"})
        ref = unquote(rest[1]) if rest else "main"
        if ref not in hub.refs[repo]:
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        commit = hub.refs[repo][ref]
        tree, kind = hub.trees[commit], rest[0] if rest else "revision"
        if kind == "revision":
            names = [{"rfilename": name} for name in tree]
            return self._json({"id": repo, "sha": commit, "siblings": names})
        if repo in hub.gated:
            return self._answer(403, {"X-Error-Code": "GatedRepo"})
        if api:
            return self._json([_listed(name, content) for name, content in tree.items()])
        name = unquote("/".join(rest[2:]))
        if name not in tree:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        content = tree[name]
        found = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(content))}
        if name.endswith(".parquet"):  # in LFS
            found["Location"] = f"{hub.cdn}/{commit}/{name.replace('/', '%2F')}"
            found["X-Linked-ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            return self._answer(302, found)
        return self._answer(200, found | {"ETag": f'"{_blob(content)}"'}, content)

    def _content(self, commit: str, path: str):
        name = unquote(path)
        content = self.server.trees[commit][name]
        if name in self.server.damaged:
            content = bytes(len(content))
        start = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        status = 206 if start else 200
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        cut = name in self.server.cut
        self.server.cut.discard(name)
        self._answer(status, headers if start else {}, content[start:], cut)

    def _token(self) -> str:
        return self.headers.get("Authorization", "")

    def _json(self, value):
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _answer(self, status, headers=(), body=b"", cut=False):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut or self.close_connection


def _listed(name: str, content: bytes) -> dict:
    file = {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}
    if name.endswith(".parquet"):
        sha256 = hashlib.sha256(content).hexdigest()
        file["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return file


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def running():
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def the_hub(monkeypatch, tmp_path):
    """A running Hub that the client of this process takes for the real one; a cache of its own."""
    with running() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 64)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(hub, "_PAUSES", (0.01, 0.01))
        forget()
        yield server
        forget()


def forget() -> None:
    """What a new process does not know."""
    hub.open_hub.cache_clear()
    hub.commits.clear()
