"""Credentials for the broker's protocol and for the admin service, from `authPluginClassName` and `authParams`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial

import pulsar

from clients.pulsar_auth import PulsarAuth
from clients.tls import tls_context
from schemas.errors import ConfigError
from spark_bridge.topics.issued_tokens import admin_token
from spark_bridge.topics.options import BridgeOptions

__all__ = ["client_authentication", "ended", "http_certificate", "http_headers", "verification"]


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
    issue = partial(admin_token, options, patience_s)
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
