"""OAuth2 tokens for the admin service. The client of the broker asks the issuer for its own tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import httpx
from cachetools import TLRUCache

from clients.certificate_refusal import certificate_refusal
from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from clients.tls import tls_context
from spark_bridge.errors import PulsarUnreachableError
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently

__all__ = ["admin_token"]

_TRUSTED: Final = "tlsTrustCertsFilePath"

# Tokens are kept: each micro-batch sends requests to the admin service, and issuers count, or charge for, each token.
_lock: Final = threading.Lock()
_kept: Final[TLRUCache[tuple[ClientCredentials, str | None], IssuedToken]] = TLRUCache(
    maxsize=64, ttu=lambda asked, token, now: now + token.usable_s, timer=time.monotonic
)


def admin_token(options: BridgeOptions, patience_s: float, credentials: ClientCredentials) -> IssuedToken:
    """A token for the admin service. This process keeps a token until shortly before it expires.

    `patience_s`: for how long the request is retried while the issuer does not answer. Raises ConfigError,
    PulsarUnreachableError.
    """
    place = (credentials, options.tls_trust_certs_file_path)
    with _lock:
        found = _kept.get(place)
        if found is None:
            found = _kept[place] = _issued(credentials, options, patience_s)
        return found


def _issued(credentials: ClientCredentials, options: BridgeOptions, patience_s: float) -> IssuedToken:
    timeout_s = options.operation_timeout_seconds
    with httpx.Client(
        verify=tls_context(options.written(_TRUSTED), options.tls_trust_certs_file_path),
        timeout=httpx.Timeout(timeout_s, connect=min(5, timeout_s)),
    ) as client:

        def ask(method: str, address: str, form: Mapping[str, str] | None) -> httpx.Response:
            try:
                return patiently(lambda: client.request(method, address, data=form), patience_s)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                refusal = certificate_refusal(str(error))
                check = f"start it or check issuer_url in {options.written('authParams')}"
                if refusal:
                    check = f"check {options.written(_TRUSTED)}"
                reason = f"it does not answer ({refusal or error}); {check}"
                raise TokenIssueError(credentials.issuer_url.rstrip("/"), reason) from None

        try:
            return issued_token(credentials, ask)
        except TokenIssueError as error:
            raise PulsarUnreachableError(options.admin_url, f"is not asked, for {error}") from None
