"""The server of the lab: one page and two requests, for the browser of this machine only.

The address holds a secret, so that no other user or page can guess it. A page of another origin
cannot ask: Host and Origin must be the address. A name that someone else points at 127.0.0.1 (DNS
rebinding) is another Host. Nothing in a request names a file.
"""

import base64
import contextlib
import hashlib
import json
import re
import secrets
import select
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from transformer.inference.beam_tree import DIVERGED
from transformer.reports.attention_page import as_script, page_of
from transformer.reports.lab import Lab
from transformer.system.errors import UserError

LOOPBACK = "127.0.0.1"
MOST_BYTES = 1 << 16  # of a request
SECONDS = 30  # for which a silent connection is kept
FRAGMENT = Path(__file__).with_name("lab.html")
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; script-src"
)


class LabServer(ThreadingHTTPServer):
    """Serves a lab at `address`; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, lab: Lab, port: int):
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UserError(
                f"cannot serve at port {port}: {error.strerror}; give another --port, or 0 for a "
                "free one"
            ) from error
        port = self.server_address[1]
        self.host = LOOPBACK if port == 80 else f"{LOOPBACK}:{port}"
        self.path = f"/{secrets.token_urlsafe(24)}/"
        self.address = f"http://{self.host}{self.path}"
        self.answers: dict[str, Callable[[bytes], dict[str, Any]]] = {
            f"{self.path}ask": lab.ask,
            f"{self.path}measure": lab.measure,
        }
        self.page, self.policy = _page(lab)
        self.lock = threading.Lock()  # a request at a time

    def handle_error(self, request: socket.socket, client_address: Any) -> None:
        """Says nothing of a browser that has gone."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LabServer
    server_version, sys_version, timeout = "lab", "", SECONDS

    def do_GET(self) -> None:
        if self._is_allowed([self.server.path]):
            self._send(200, "text/html", self.server.page)

    def do_POST(self) -> None:
        if not self._is_allowed(self.server.answers, f"http://{self.server.host}"):
            return
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MOST_BYTES:
            self._refuse(413, f"a request may have {MOST_BYTES:,} bytes; shorten the text")
            return
        if self.headers.get("Content-Type") != "application/json":
            self._refuse(415, "a request must be JSON")
            return
        content = self.rfile.read(int(length))
        try:
            with self.server.lock:
                if self._has_gone():
                    return
                answer = self.server.answers[self.path](content)
        except UserError as error:
            self._refuse(400, " ".join(str(error).split()))
            return
        try:
            text = json.dumps(answer, allow_nan=False)
        except ValueError:  # a page can read no NaN
            self._refuse(400, DIVERGED)
        else:
            self._send(200, "application/json", text.encode())

    def _has_gone(self) -> bool:
        """True if the page waits no more, since it has asked something else."""
        is_readable = select.select([self.connection], [], [], 0)[0]
        return bool(is_readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _is_allowed(self, paths: Any, origin: str | None = None) -> bool:
        """False, once it has said so, for other hosts, origins and addresses."""
        if self.headers.get_all("Host") != [self.server.host]:
            self._refuse(403, "this server has another name")
        elif origin and self.headers.get_all("Origin") != [origin]:
            self._refuse(403, "the request is not from the page of the lab")
        elif not any(secrets.compare_digest(self.path.encode(), x.encode()) for x in paths):
            self._refuse(404, "the address is another one; the command has printed it")
        else:
            return True
        return False

    def _refuse(self, code: int, message: str) -> None:
        self._send(code, "application/json", json.dumps({"error": message}).encode())

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", f"{self.server.policy}; frame-ancestors 'none'"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the address is secret."""


def _page(lab: Lab) -> tuple[bytes, str]:
    """The page, and the policy that lets only its own scripts run."""
    text = page_of(as_script({"lab": lab.facts()}), "__OWN__", FRAGMENT.read_text(encoding="utf-8"))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for x in scripts]
    policy = " ".join([POLICY, *(f"'sha256-{x}'" for x in hashes)])
    return text.replace("__OWN__", policy).encode(), policy


def serve(lab: Lab, port: int, *, opens: bool) -> None:
    """Serves until Ctrl-C or SIGTERM; prints the address, and opens it in the browser."""
    with LabServer(lab, port) as server:
        print(server.address, flush=True)

        def stop(*_: Any) -> None:
            # Not from this thread, which would wait for itself.
            threading.Thread(target=server.shutdown, daemon=True).start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        threading.Thread(target=_warm_up, args=[lab, server.lock], daemon=True).start()
        if opens:
            # Not in this thread: a browser for terminals waits for the page.
            threading.Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
        server.serve_forever(poll_interval=0.1)
    for number in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait
        signal.signal(number, signal.SIG_DFL)
    # Python cannot end while a thread compiles a program.
    server.lock.acquire(timeout=60)


def _warm_up(lab: Lab, lock: threading.Lock) -> None:
    with lock, contextlib.suppress(UserError):
        lab.warm_up()
