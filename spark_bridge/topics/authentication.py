"""Credentials for the broker's protocol and for the admin service, from `authPluginClassName` and `authParams`.

The client of the broker asks an OAuth2 issuer for its own tokens. Those for the admin service are requested here.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import httpx
import pulsar
from cachetools import TLRUCache

from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from clients.pulsar_auth import PulsarAuth
from clients.tls import certificate_refusal, tls_context
from schemas.errors import ConfigError
from spark_bridge.errors import PulsarUnreachableError
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently

__all__ = ["client_authentication", "ended", "http_certificate", "http_headers", "verification"]

_TRUSTED: Final = "tlsTrustCertsFilePath"
# Tokens are kept: each micro-batch sends requests to the admin service, and issuers count, or charge for, each token.
_lock: Final = threading.Lock()
_kept: Final[TLRUCache[tuple[ClientCredentials, str | None], IssuedToken]] = TLRUCache(
    maxsize=64, ttu=lambda asked, token, now: now + token.usable_s, timer=time.monotonic
)


def client_authentication(options: BridgeOptions) -> pulsar.Authentication | None:
    """Authentication for the client of the broker; None without authentication. Raises ConfigError."""
    auth = _auth(options)
    match auth.kind:
        case "":
            return None
        case "token":
            return pulsar.AuthenticationToken(_token(auth))
        case "tls":
            return pulsar.AuthenticationTLS(*auth.certificate())
        case "oauth2":
            credentials = auth.client_credentials()
            credentials.key()  # checked here, because the client only says of a wrong key that it cannot authenticate
            return pulsar.AuthenticationOauth2(credentials.params)
        case _:
            return pulsar.AuthenticationBasic(*auth.user())


def http_headers(options: BridgeOptions, *, patience_s: float = 0.0) -> Mapping[str, str]:
    """HTTP headers for the admin service. `patience_s`: how long to retry while an issuer of tokens does not answer.

    Raises ConfigError, and PulsarUnreachableError if the issuer gives no token.
    """
    auth = _auth(options, patience_s)
    if auth.kind == "token":
        _token(auth)
    return auth.http_headers()


def ended(options: BridgeOptions) -> str | None:
    """When the token expired, as text; None if it has not expired, or if there is no token."""
    return _auth(options).ended()


def http_certificate(options: BridgeOptions) -> tuple[str, str] | None:
    """Certificate and key files for the admin service. Raises ConfigError."""
    auth = _auth(options)
    return auth.certificate() if auth.kind == "tls" else None


def verification(options: BridgeOptions) -> ssl.SSLContext:
    """TLS settings for connections that are not the client library's: trusted certificates, and the own certificate.

    Raises ConfigError.
    """
    context = tls_context(
        options.written("tlsTrustCertsFilePath"),
        options.tls_trust_certs_file_path,
        check_hostname=options.tls_hostname_verification_enable,
        allow_insecure=options.tls_allow_insecure_connection,
    )
    _auth(options).use_certificate(context)
    return context


def _auth(options: BridgeOptions, patience_s: float = 0.0) -> PulsarAuth:
    params = options.auth_params.get_secret_value().strip() if options.auth_params else ""
    issue = partial(_admin_token, options, patience_s)
    return PulsarAuth(options.auth_plugin_class_name or "", params, options.written("authParams"), issue)


def _token(auth: PulsarAuth) -> str:
    if not auth.params.startswith(("token:", "file:")):
        raise ConfigError.of("authParams", "for AuthenticationToken begins with 'token:' or 'file:'")
    try:
        return auth.token()
    except OSError as error:
        raise ConfigError.of(
            "authParams", f"the token file {error.filename} cannot be read ({error.strerror})"
        ) from None


def _admin_token(options: BridgeOptions, patience_s: float, credentials: ClientCredentials) -> IssuedToken:
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
