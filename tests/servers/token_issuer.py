"""An issuer of OAuth2 tokens by the client credentials flow, over real HTTP."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from tests.servers.local_http import LocalServer, running

__all__ = ["CLIENT_SECRET", "CONFIGURATION_PATH", "OAUTH2_PLUGIN", "TOKEN_PATH", "Issuer", "key_file", "token_issuer"]

OAUTH2_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
CLIENT_SECRET: Final = "tell-nobody"
CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
TOKEN_PATH: Final = "/token"


class Issuer(LocalServer):
    """Issues tokens to every client with the secret `CLIENT_SECRET`. `forms` has all received forms.

    `answers` may have other answers by path: status and body. A token is the client's id with a number, or the result
    of `token_of` for the client's id.
    """

    def __init__(self, token_of: Callable[[str], str] | None, tls: ssl.SSLContext | None) -> None:
        super().__init__(_Handler, tls)
        self.forms: list[dict[str, list[str]]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.expires_in: object = 3600
        self.token_of = token_of or (lambda client_id: f"{client_id}-{len(self.forms)}")


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Issuer)
        self._answer(200, {"token_endpoint": f"{self.server.url}{TOKEN_PATH}"})

    def do_POST(self) -> None:
        issuer = self.server
        assert isinstance(issuer, Issuer)
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        issuer.forms.append(form)
        if form["client_secret"] != [CLIENT_SECRET]:
            description = f"no client has\nthe secret {form['client_secret'][0]}"
            self._answer(401, {"error": "invalid_client", "error_description": description})
        else:
            token = issuer.token_of(form["client_id"][0])
            self._answer(200, {"access_token": token, "expires_in": issuer.expires_in, "token_type": "Bearer"})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        assert isinstance(self.server, Issuer)
        status, data = self.server.answers.get(self.path, (status, json.dumps(content).encode()))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
        """Log no requests."""


@contextmanager
def token_issuer(token_of: Callable[[str], str] | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """An issuer that runs while the block runs."""
    with running(Issuer(token_of, tls)) as issuer:
        yield issuer


def key_file(path: Path, client_id: str, client_secret: str = CLIENT_SECRET) -> str:
    """Write a key file, and return its URL for the parameter `private_key`."""
    path.write_text(json.dumps({"client_id": client_id, "client_secret": client_secret}))
    return f"file://{path}"
