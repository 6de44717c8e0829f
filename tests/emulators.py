"""Emulators of buckets on the loopback address, behind a door that can be shut."""

import contextlib
import http.client
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from processes import free_port

BUCKET = "bucket"
Answer = tuple[int, list[tuple[str, str]], bytes]  # code, headers, content


class Door:
    """A proxy before an emulator of Google's or Amazon's storage.

    env: environment variables by which clients come here. shut: while it is set, every answer is
    503. pause_at: a pattern; the answer to the first change that has it waits for `go_on`, and
    `reached` tells. changes: the method and the name of each object that was written or removed, in
    order.
    """

    def __init__(self, scheme: str, behind: int):
        self.shut, self.changes, self._behind = threading.Event(), [], behind
        self.pause_at, self.reached, self.go_on = "", threading.Event(), threading.Event()
        self._one_at_once = threading.Lock()
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_) -> None:
                pass

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                code, headers, content = door.answer(self.command, self.path, self.headers, body)
                self.send_response(code)
                length = str(len(content))
                for name, value in headers:
                    if name.lower() == "content-length":
                        length = value  # that of HEAD has no content
                    elif name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_any

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_) -> None:  # a client that was killed
                pass

        self._server = Server(("localhost", 0), Handler)
        self.url = f"http://localhost:{self._server.server_port}"
        self.env = {"NO_GCE_CHECK": "true", "AWS_EC2_METADATA_DISABLED": "true"}
        if scheme == "gs":
            self.env |= {"STORAGE_EMULATOR_HOST": self.url, "FSSPEC_GS_TOKEN": "anon"}
        else:
            self.env |= {"AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": "us-east-1"}
            self.env |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, command: str, path: str, headers: Any, body: bytes) -> Answer:
        if self.shut.is_set():
            return 503, [], b"{}"
        name = path
        if path.startswith("/upload") and (named := re.search(rb'"name": *"([^"]*)"', body)):
            name = named[1].decode()
            place = f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}"
            # The emulator does not know this condition.
            if "ifGenerationMatch=0" in path and self._ask("GET", place, {}, b"")[0] == 200:
                return 412, [], b'{"error": {"code": 412, "message": "exists"}}'
        found = self._ask(command, path, headers, body)
        if command in ("PUT", "POST", "DELETE") and found[0] < 300:
            with self._one_at_once:
                self.changes.append(change := f"{command} {urllib.parse.unquote(name)}")
                if is_it := bool(self.pause_at and re.search(self.pause_at, change)):
                    self.pause_at = ""
                    self.reached.set()
            if is_it:
                self.go_on.wait(60)  # for long if it is killed meanwhile
        return found

    def wait_for(self, process: subprocess.Popen) -> None:
        """Returns when the process has made the change `pause_at`, and waits for the answer."""
        self.go_on.clear()
        while not self.reached.wait(0.1):
            assert process.poll() is None, (self.changes, process.stderr.read())
        self.reached.clear()

    def put(self, name: str, content: bytes) -> None:
        """Puts an object into the bucket of Google's emulator."""
        place = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
        assert self._ask("POST", place, {"Content-Type": "text/plain"}, content)[0] == 200

    def _ask(self, command: str, path: str, headers: Any, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("localhost", self._behind, timeout=60)
        with contextlib.closing(connection):
            connection.request(command, path, body, dict(headers))
            found = connection.getresponse()
            return found.status, found.getheaders(), found.read()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def emulated(scheme: str) -> Iterator[Door]:
    """An empty bucket gs://bucket or s3://bucket; skips the test without the emulator."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        if scheme == "gs":
            pytest.importorskip("gcsfs", reason="gcsfs is not installed")
            server = pytest.importorskip(
                "gcp_storage_emulator.server", reason="no emulator of gs://"
            )
            started = server.create_server("localhost", port, True, default_bucket=BUCKET)
            started.start()
            stack.callback(started.stop)
        else:
            pytest.importorskip("s3fs", reason="s3fs is not installed")
            moto = pytest.importorskip("moto.server", reason="no emulator of s3://")
            started = moto.ThreadedMotoServer("localhost", port, verbose=False)
            started.start()
            stack.callback(started.stop)
            connection = http.client.HTTPConnection("localhost", port)
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status == 200
        door = Door(scheme, port)
        stack.callback(door.close)
        yield door
