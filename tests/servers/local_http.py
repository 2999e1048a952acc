"""HTTP servers of tests, on loopback, that run while a block runs."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

__all__ = ["LocalServer", "running"]


class LocalServer(ThreadingHTTPServer):
    """A server on a free port, with TLS if a context is given."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)


_Server = TypeVar("_Server", bound=LocalServer)


@contextmanager
def running(server: _Server) -> Iterator[_Server]:
    """Serve while the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
