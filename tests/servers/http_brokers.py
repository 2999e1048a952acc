"""Small HTTP servers that answer like brokers that own a topic, or redirect to its owner."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from tests.servers.local_http import LocalServer, running

__all__ = ["Answering", "Broker", "Request", "broker", "in_order", "owner_of_all", "redirects_to"]


class Request(NamedTuple):
    """A request that a server received."""

    method: str
    path: str
    body: object
    authorization: str | None


Answering = Callable[[Request], tuple[int, Mapping[str, str], object]]
"""A function that returns status, headers and the body for a request: bytes as they are, or what becomes JSON."""


class Broker(LocalServer):
    """A server that stores its requests in `asked`. `answering` may be changed while it runs."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None) -> None:
        super().__init__(_Handler, tls)
        self.answering = answering
        self.asked: list[Request] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, Broker)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(
            self.command, self.path, json.loads(body) if body else None, self.headers.get("Authorization")
        )
        server.asked.append(request)
        status, headers, content = server.answering(request)
        data = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
        """Log no requests."""


@contextmanager
def broker(answering: Answering, tls: ssl.SSLContext | None = None) -> Iterator[Broker]:
    """A server that runs while the block runs."""
    with running(Broker(answering, tls)) as server:
        yield server


def redirects_to(url: str, status: int = 307) -> Answering:
    """Redirect every request to the same path of another broker, with an empty body, as Pulsar does."""
    return lambda request: (status, {"Location": url + request.path}, None)


def in_order(answers: Iterable[tuple[int, str]]) -> Answering:
    """Give these answers (status, body) one after the other, and then the last one again and again."""
    left = list(answers)

    def answering(request: Request) -> tuple[int, Mapping[str, str], object]:
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return status, {}, body.encode()

    return answering


def owner_of_all(content: object) -> Answering:
    """Answer every request with this content."""
    return lambda request: (200, {}, content)
