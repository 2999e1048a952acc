"""Tokens of OAuth2 for the admin service. The broker's client asks the issuer for its own."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
from cachetools import TLRUCache

from schemas.certificate_refusal import certificate_refusal
from schemas.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from schemas.errors import ConfigError
from spark_bridge.errors import PulsarUnreachableError
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently

__all__ = ["admin_token", "client_credentials", "read_key_file", "trusting"]

# Each micro-batch asks the admin service anew, and issuers count, or charge for, each token.
_lock: Final = threading.Lock()
_kept: Final[TLRUCache[tuple[ClientCredentials, str | None], IssuedToken]] = TLRUCache(
    maxsize=64, ttu=lambda asked, token, now: now + token.usable_s, timer=time.monotonic
)


def client_credentials(options: BridgeOptions) -> ClientCredentials:
    """Of AuthenticationOAuth2. Raises ConfigError."""
    params = options.auth_params.get_secret_value() if options.auth_params else ""
    return ClientCredentials.parse(params, "authParams")


def read_key_file(path: str) -> str:
    """The text of a key file. Raises OSError and ValueError."""
    return Path(path).read_text("utf-8")


def admin_token(options: BridgeOptions, patience_s: float) -> str:
    """A token for the admin service: one for this process until shortly before it ends.

    `patience_s`: for how long an issuer that does not answer is asked again. Raises ConfigError, PulsarUnreachableError.
    """
    credentials = client_credentials(options)
    place = (credentials, options.tls_trust_certs_file_path)
    with _lock:
        found = _kept.get(place)
        if found is None:
            found = _kept[place] = _issued(credentials, options, patience_s)
        return found.text


def trusting(options: BridgeOptions) -> ssl.SSLContext:
    """TLS with the certificates that the options trust, else the system's. Raises ConfigError."""
    trusted = options.tls_trust_certs_file_path
    try:
        return ssl.create_default_context(cafile=trusted)
    except OSError as error:  # ssl.SSLError, too
        raise ConfigError.of("tlsTrustCertsFilePath", f"{trusted} holds no certificates in PEM ({error})") from None


def _issued(credentials: ClientCredentials, options: BridgeOptions, patience_s: float) -> IssuedToken:
    timeout_s = options.operation_timeout_seconds
    with httpx.Client(verify=trusting(options), timeout=httpx.Timeout(timeout_s, connect=min(5, timeout_s))) as client:

        def ask(method: str, address: str, form: Mapping[str, str] | None) -> httpx.Response:
            try:
                return patiently(lambda: client.request(method, address, data=form), patience_s)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                refusal = certificate_refusal(str(error))
                check = "check tlsTrustCertsFilePath" if refusal else "start it or check issuer_url in authParams"
                reason = f"it does not answer ({refusal or error}); {check}"
                raise TokenIssueError(credentials.issuer_url.rstrip("/"), reason) from None

        try:
            return issued_token(credentials, read_key_file, ask)
        except TokenIssueError as error:
            raise PulsarUnreachableError(options.admin_url, f"is not asked, for {error}") from None
