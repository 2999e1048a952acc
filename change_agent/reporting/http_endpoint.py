"""HttpEndpoint: `/metrics`, `/status`, `/healthz` and `/readyz` over HTTP, on loopback by default."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from runtime.stage import Stage
from schemas.errors import ConfigError

__all__ = ["Answer", "HttpEndpoint"]

_log: Final = logging.getLogger(__name__)
_REQUEST_TIMEOUT_S: Final = 10.0

Answer = Callable[[], tuple[bool, bytes, str]]
"""Makes an answer: True for status 200 and False for 503, the body, and its content type."""


class HttpEndpoint(Stage):
    """Serves from separate threads between `start` and `stop`.

    The constructor binds the address. It raises ConfigError if that is not possible.
    """

    def __init__(self, address: str, port: int, answers: dict[str, Answer]) -> None:
        super().__init__("HTTP endpoint")
        try:
            self._server: Final = _Server((address, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = f"{address}:{port} cannot be listened on ({error}); choose another, 0 for a free port, or off"
            raise ConfigError.of("httpPort", reason) from error
        self._server.answers = answers

    @property
    def address(self) -> str:
        """`host:port`, with the port that was bound."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self) -> None:
        """Start to answer requests."""
        super().start()
        _log.info("metrics, health and readiness on http://%s", self.address)

    def stop(self) -> None:
        """Stop answering, and close the port."""
        if self.is_running:
            self._server.shutdown()
        super().stop()
        self._server.server_close()

    def run(self) -> None:
        """Answer requests until `stop`."""
        self._server.serve_forever(0.2)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: dict[str, Answer]


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server_version = "cassandra-cdc"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request for one of the paths; the answer to any other path lists them."""
        server = self.server
        assert isinstance(server, _Server)
        answer = server.answers.get(self.path.partition("?")[0])
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, " ".join(sorted(server.answers)).encode() + b"\n", "text/plain")
            return
        is_well, body, content_type = answer()
        self._send(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, body, content_type)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        """Requests are not logged."""
