"""PulsarAuth: one set of credentials for the broker and for the admin interface."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, cast

import httpx

from schemas.client_credentials import ClientCredentials, TokenIssueError, issued_token
from schemas.errors import ConfigError
from schemas.token_end import ended_token

__all__ = ["PulsarAuth"]

_KINDS: Final = ("token", "basic", "tls", "oauth2")
_TIMEOUT_S: Final = 15.0


class PulsarAuth:
    """Credentials as Pulsar's Java clients name them: plugin class and parameters. Prints no secret.

    The constructor raises ConfigError for what the admin interface cannot use.
    """

    def __init__(self, plugin: str, params: str) -> None:
        self.params: Final = params
        self._kind: Final = plugin.rpartition(".")[2].lower().removeprefix("authentication")
        self.plugin: Final = plugin
        if self._kind not in _KINDS:
            reason = f"{plugin} cannot be used for pulsarAdminUrl (token, TLS, basic and OAuth2 can)"
            raise ConfigError.of("pulsarAuthPluginClassName", reason)
        self._lock: Final = threading.Lock()
        self._bearer = ""
        self._bearer_ends_at_s = 0.0
        if self._kind == "basic":
            self._basic()
        if self._kind == "oauth2":
            self._oauth2()

    def __repr__(self) -> str:
        return f"PulsarAuth(plugin={self.plugin!r}, params='****')"

    @property
    def is_oauth2(self) -> bool:
        """True for the plugin of OAuth2, which the Pulsar client makes in a way of its own."""
        return self._kind == "oauth2"

    def problem(self) -> str:
        """Why a broker may refuse, to be put behind its answer; empty when nothing is known."""
        try:
            ended = ended_token(self._token(), time.time()) if self._kind == "token" else None
        except (OSError, ValueError) as error:
            ended = f"the token cannot be read: {error}"
        return "" if ended is None else f" ({ended})"

    def http_headers(self) -> dict[str, str]:
        """What the admin interface wants to see. A token's file is read each time: it may be replaced.

        Raises OSError; of OAuth2, ConfigError for the key file, and TokenIssueError when the issuer gives no token.
        """
        match self._kind:
            case "token":
                return {"Authorization": f"Bearer {self._token()}"}
            case "basic":
                return {"Authorization": f"Basic {base64.b64encode(self._basic().encode()).decode()}"}
            case "oauth2":
                return {"Authorization": f"Bearer {self._issued_token()}"}
            case _:
                return {}

    def use_certificate(self, context: ssl.SSLContext) -> None:
        """Give the client's certificate of AuthenticationTls to a TLS context. Raises ConfigError."""
        if self._kind != "tls":
            return
        params = dict(part.split(":", 1) for part in self.params.split(",") if ":" in part)
        try:
            context.load_cert_chain(params.get("tlsCertFile", ""), params.get("tlsKeyFile", ""))
        except (OSError, ssl.SSLError) as error:
            reason = f"the client certificate cannot be used ({error})"
            raise ConfigError.of("pulsarAuthParams", reason) from error

    def _basic(self) -> str:
        credentials = self._json("userId", "password")
        return f"{credentials['userId']}:{credentials['password']}"

    def _oauth2(self) -> ClientCredentials:
        return ClientCredentials.parse(self.params, "pulsarAuthParams")

    def _json(self, *needed: str) -> Mapping[str, str]:
        try:
            loaded = cast("Mapping[str, str]", json.loads(self.params))
            for name in needed:
                loaded[name]
        except (ValueError, KeyError, TypeError):
            # The text may be a password: it must not be shown, nor be the cause of what is.
            raise ConfigError.of("pulsarAuthParams", f"must be JSON with {' and '.join(needed)}") from None
        return loaded

    def _token(self) -> str:
        if self.params.startswith("token:"):
            return self.params.removeprefix("token:")
        for prefix in ("file://", "file:"):
            if self.params.startswith(prefix):
                return Path(self.params.removeprefix(prefix)).read_text(encoding="utf-8").strip()
        return self.params

    def _issued_token(self) -> str:
        """By the client credentials flow, as the Pulsar client gets its own; kept until shortly before its end."""
        with self._lock:
            if time.monotonic() >= self._bearer_ends_at_s:
                credentials = self._oauth2()
                with httpx.Client(timeout=_TIMEOUT_S) as client:
                    ask = partial(_asked, client, credentials.issuer_url)
                    issued = issued_token(credentials, lambda path: Path(path).read_text(encoding="utf-8"), ask)
                self._bearer = issued.text
                self._bearer_ends_at_s = time.monotonic() + issued.usable_s
            return self._bearer


def _asked(
    client: httpx.Client, issuer: str, method: str, address: str, form: Mapping[str, str] | None
) -> httpx.Response:
    try:
        return client.request(method, address, data=form)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = (
            f"it does not answer ({error or type(error).__name__}); start it or check issuer_url in pulsarAuthParams"
        )
        raise TokenIssueError(issuer.rstrip("/"), reason) from error
