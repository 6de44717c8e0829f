"""Connections between the processes of a job, by which each hears at once when another one dies.

The operating system closes the connections of a process that ends, no matter how it ended. If a
whole host is gone, TCP's keepalive notices. Without connections, for example behind a firewall,
JAX's heartbeats remain; they end the other processes later and in JAX's own way.
"""

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable

Died = Callable[[int], None]  # called with the number of a process


class Hub:
    """Process 0's side. The others connect to `address`, a text that `join` takes."""

    def __init__(self, died: Died):
        kind = {"family": socket.AF_INET6, "dualstack_ipv6": True}
        self._server = socket.create_server(
            ("", 0), backlog=1024, **(kind if socket.has_dualstack_ipv6() else {})
        )
        self._secret = secrets.token_hex(8)  # so that a stranger is not taken for a process
        self._died = died
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return json.dumps([self._server.getsockname()[1], self._secret])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # such as too many open files, which passes after a while
                time.sleep(0.1)
                continue
            threading.Thread(target=self._watch, args=[connection], daemon=True).start()

    def _watch(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, UnicodeError):
            secret, number = connection.makefile().readline(100).split()
            if secret == self._secret:
                _wait_for_the_end(connection)
                self._died(int(number))


def join(host: str, address: str, number: int, died: Died) -> None:
    """The other processes' side; raises OSError if process 0 cannot be reached."""
    port, secret = json.loads(address)
    connection = socket.create_connection((host, port), timeout=5)
    connection.settimeout(None)
    connection.sendall(f"{secret} {number}\n".encode())

    def watch() -> None:
        _wait_for_the_end(connection)
        died(0)

    threading.Thread(target=watch, daemon=True).start()


def _wait_for_the_end(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    with contextlib.suppress(OSError):
        while connection.recv(100):
            pass
