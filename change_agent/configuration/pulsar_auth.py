"""PulsarAuth with the names of the agent's options, and with httpx to request OAuth2 tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

from clients import pulsar_auth
from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from schemas.errors import ConfigError

__all__ = ["PulsarAuth"]

_KINDS: Final = ("token", "basic", "tls", "oauth2")
_OPTION: Final = "pulsarAuthParams"
_TIMEOUT_S: Final = 15.0


class PulsarAuth(pulsar_auth.PulsarAuth):
    """The agent's credentials. The constructor raises ConfigError if the admin service cannot use them."""

    def __init__(self, plugin: str, params: str) -> None:
        super().__init__(plugin, params, _OPTION, _issued)
        if self.kind not in _KINDS:
            reason = f"{plugin} cannot be used for pulsarAdminUrl (token, TLS, basic and OAuth2 can)"
            raise ConfigError.of("pulsarAuthPluginClassName", reason)
        if self.kind == "basic":
            self.user()
        if self.kind == "oauth2":
            self.client_credentials()


def _issued(credentials: ClientCredentials) -> IssuedToken:
    with httpx.Client(timeout=_TIMEOUT_S) as client:

        def ask(method: str, address: str, form: Mapping[str, str] | None) -> httpx.Response:
            try:
                return client.request(method, address, data=form)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                what = f"it does not answer ({error or type(error).__name__})"
                reason = f"{what}; start it or check issuer_url in {credentials.option}"
                raise TokenIssueError(credentials.issuer_url.rstrip("/"), reason) from error

        return issued_token(credentials, ask)
