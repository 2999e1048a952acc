"""PulsarAuth: one set of credentials for the broker and for the admin service.

    token    token:TEXT, file:///path or TEXT        basic   {"userId": ..., "password": ...}
    tls      tlsCertFile:/path,tlsKeyFile:/path      oauth2  {"issuer_url": ..., "private_key": ...}

The plugin is given by its Java class, or by the short name that all Pulsar clients know. The caller provides the HTTP
client.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from clients.client_credentials import ClientCredentials, IssuedToken
from schemas.errors import ConfigError

__all__ = ["Issue", "PulsarAuth", "ended_token"]

Issue = Callable[[ClientCredentials], IssuedToken]
"""Requests a token from an issuer. Raises ConfigError for the key file, and TokenIssueError."""


class PulsarAuth:
    """Credentials with the names of Pulsar's Java clients. Its `repr` has no secret.

    `option` is the option of the parameters, for errors. Only `http_headers` with OAuth2 needs `issue`.
    """

    def __init__(self, plugin: str, params: str, option: str, issue: Issue | None = None) -> None:
        self.plugin: Final = plugin
        self.params: Final = params
        self.kind: Final = plugin.rpartition(".")[2].lower().removeprefix("authentication")
        self._option: Final = option
        self._issue: Final = issue
        self._lock: Final = threading.Lock()
        self._bearer = ""
        self._bearer_ends_at_s = 0.0

    def __repr__(self) -> str:
        return f"PulsarAuth(plugin={self.plugin!r}, params='****')"

    def http_headers(self) -> dict[str, str]:
        """Headers for the admin service. The file of a token is read each time, because it may be replaced.

        Raises OSError and ValueError for the file of a token, ConfigError, and TokenIssueError if the issuer gives no
        token.
        """
        match self.kind:
            case "token":
                return {"Authorization": f"Bearer {self.token()}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(':'.join(self.user()).encode()).decode()}"}
            case "oauth2":
                return {"Authorization": f"Bearer {self._issued_token()}"}
            case _:
                return {}

    def token(self) -> str:
        """The token without its prefix. Raises OSError and ValueError for a file that cannot be read."""
        path = re.sub("^file:(//)?", "", self.params)
        text = self.params if path == self.params else Path(path).read_text(encoding="utf-8")
        return text.removeprefix("token:").strip()

    def user(self) -> tuple[str, str]:
        """User and password of AuthenticationBasic. Raises ConfigError."""
        try:
            given = json.loads(self.params)
            return str(given["userId"]), str(given["password"])
        except (ValueError, KeyError, TypeError):
            # The text may be a password: neither it nor an error with it as a cause may be shown.
            reason = 'for AuthenticationBasic is JSON: {"userId": "...", "password": "..."}'
            raise ConfigError.of(self._option, reason) from None

    def certificate(self) -> tuple[str, str]:
        """Paths of the certificate and the key of AuthenticationTls. Raises ConfigError."""
        given = dict(part.split(":", 1) for part in self.params.split(",") if ":" in part)
        if not given.keys() >= {"tlsCertFile", "tlsKeyFile"}:
            raise ConfigError.of(self._option, "for AuthenticationTls is 'tlsCertFile:/path,tlsKeyFile:/path'")
        return given["tlsCertFile"], given["tlsKeyFile"]

    def client_credentials(self) -> ClientCredentials:
        """Parameters of AuthenticationOAuth2. Raises ConfigError."""
        return ClientCredentials.parse(self.params, self._option)

    def use_certificate(self, context: ssl.SSLContext) -> None:
        """Give the client's certificate of AuthenticationTls to a TLS context. Raises ConfigError."""
        if self.kind == "tls":
            try:
                context.load_cert_chain(*self.certificate())
            except (OSError, ssl.SSLError) as error:
                reason = f"the client certificate cannot be used ({error})"
                raise ConfigError.of(self._option, reason) from error

    def problem(self) -> str:
        """A possible reason for a broker's refusal, as an addition to its own message; empty if none is known."""
        ended = self.ended()
        return "" if ended is None else f" ({ended})"

    def ended(self) -> str | None:
        """A text with the time when the token ended, or why it cannot be read; otherwise None.

        The broker's client does not report this.
        """
        if self.kind != "token":
            return None
        try:
            return ended_token(self.token(), time.time())
        except (OSError, ValueError) as error:
            return f"the token cannot be read: {error}"

    def _issued_token(self) -> str:
        """A token of the client credentials flow, which the Pulsar client uses, too.

        It is kept until shortly before its end.
        """
        with self._lock:
            if time.monotonic() >= self._bearer_ends_at_s:
                assert self._issue is not None
                issued = self._issue(self.client_credentials())
                self._bearer = issued.text
                self._bearer_ends_at_s = time.monotonic() + issued.usable_s
            return self._bearer


def ended_token(token: str, now_s: float) -> str | None:
    """A message for the operator about a token that has ended; None for any other token, and if it is no JWT (RFC 7519)."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end_s = float(claims["exp"])
        ended = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
    return f"the token ended at {ended}: give a new one" if end_s <= now_s else None
