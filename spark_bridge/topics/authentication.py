"""Credentials for the broker's protocol and for the admin service.

`authPluginClassName` and `authParams` are those of Pulsar's `client.conf`: `token:...` or `file:///path`;
`tlsCertFile:...,tlsKeyFile:...`; `{"userId": ..., "password": ...}`; `{"issuer_url": ..., "private_key": ...}`.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlparse

import pulsar

from schemas.errors import ConfigError
from schemas.token_end import ended_token
from spark_bridge.topics.issued_tokens import admin_token, client_credentials, read_key_file
from spark_bridge.topics.options import BASIC_PLUGIN, OAUTH2_PLUGIN, TLS_PLUGIN, TOKEN_PLUGIN, BridgeOptions

__all__ = ["client_authentication", "ended", "http_certificate", "http_headers"]


def client_authentication(options: BridgeOptions) -> pulsar.Authentication | None:
    """For the broker; None without authentication. Raises ConfigError."""
    match options.auth_plugin_class_name:
        case None:
            return None
        case str() as plugin if plugin == TOKEN_PLUGIN:
            return pulsar.AuthenticationToken(_token(options))
        case str() as plugin if plugin == TLS_PLUGIN:
            return pulsar.AuthenticationTLS(*_certificate(options))
        case str() as plugin if plugin == OAUTH2_PLUGIN:
            credentials = client_credentials(options)
            credentials.key(read_key_file)  # of a wrong one the client says no more than that it cannot authenticate
            return pulsar.AuthenticationOauth2(credentials.params)
        case _:
            return pulsar.AuthenticationBasic(*_user(options))


def http_headers(options: BridgeOptions, *, patience_s: float = 0.0) -> Mapping[str, str]:
    """For the admin service. `patience_s`: for how long an issuer of tokens that does not answer is asked again.

    Raises ConfigError; PulsarUnreachableError when the issuer gives no token.
    """
    if options.auth_plugin_class_name == TOKEN_PLUGIN:
        return {"Authorization": f"Bearer {_token(options)}"}
    if options.auth_plugin_class_name == BASIC_PLUGIN:
        return {"Authorization": "Basic " + base64.b64encode(":".join(_user(options)).encode()).decode()}
    if options.auth_plugin_class_name == OAUTH2_PLUGIN:
        return {"Authorization": f"Bearer {admin_token(options, patience_s)}"}
    return {}


def ended(options: BridgeOptions) -> str | None:
    """When the token has ended, in words; None for one that has not, and without one. Raises ConfigError."""
    return ended_token(_token(options), time.time()) if options.auth_plugin_class_name == TOKEN_PLUGIN else None


def http_certificate(options: BridgeOptions) -> tuple[str, str] | None:
    """Certificate and key files for the admin service. Raises ConfigError."""
    return _certificate(options) if options.auth_plugin_class_name == TLS_PLUGIN else None


def _params(options: BridgeOptions) -> str:
    return options.auth_params.get_secret_value().strip() if options.auth_params else ""


def _token(options: BridgeOptions) -> str:
    params = _params(options)
    if params.startswith("token:"):
        return params.removeprefix("token:")
    if params.startswith("file:"):
        path = Path(urlparse(params).path)
        try:
            return path.read_text("utf-8").strip()
        except OSError as error:
            raise ConfigError.of("authParams", f"the token file {path} cannot be read ({error.strerror})") from None
    raise ConfigError.of("authParams", "for AuthenticationToken begins with 'token:' or 'file:'")


def _certificate(options: BridgeOptions) -> tuple[str, str]:
    given = dict(part.split(":", 1) for part in _params(options).split(",") if ":" in part)
    if not given.keys() >= {"tlsCertFile", "tlsKeyFile"}:
        raise ConfigError.of("authParams", "for AuthenticationTls is 'tlsCertFile:/path,tlsKeyFile:/path'")
    return given["tlsCertFile"], given["tlsKeyFile"]


def _user(options: BridgeOptions) -> tuple[str, str]:
    try:
        given = json.loads(_params(options))
        return str(given["userId"]), str(given["password"])
    except (ValueError, KeyError, TypeError):
        reason = 'for AuthenticationBasic is JSON: {"userId": "...", "password": "..."}'
        raise ConfigError.of("authParams", reason) from None
