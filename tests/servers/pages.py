"""A server with fixed pages by path: answers of Pulsar's admin service or of an agent, also wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.servers.local_http import LocalServer, running

__all__ = ["Page", "page", "serving"]


class Page(NamedTuple):
    """One answer. `date`: the text of the header `Date`; None: the answer has no such header. `headers`: other headers."""

    body: bytes
    status: int = 200
    date: str | None = "Mon, 23 Nov 2026 17:10:05 GMT"
    headers: tuple[tuple[str, str], ...] = ()


def page(content: Any, status: int = 200) -> Page:
    """A page with this content as JSON."""
    return Page(json.dumps(content).encode(), status)


class _Server(LocalServer):
    def __init__(self, pages: Mapping[str, Page]) -> None:
        super().__init__(_Handler, None)
        self.pages = pages


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # a connection serves many requests

    def do_GET(self) -> None:
        """Send the page of the path without its query, or 404 if there is none."""
        server = self.server
        assert isinstance(server, _Server)
        found = server.pages.get(self.path.partition("?")[0], Page(b'{"reason":"Not found"}', 404))
        self.send_response_only(found.status)
        if found.date is not None:
            self.send_header("Date", found.date)
        for name, value in found.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(found.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        """Log no requests."""


@contextmanager
def serving(pages: Mapping[str, Page]) -> Iterator[str]:
    """The URL of a server that answers with these pages, which may be changed while it runs."""
    with running(_Server(pages)) as server:
        yield server.url
