"""TLS and credentials for Cassandra and Pulsar, from the options that agent.yaml and line.yaml share."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import httpx

import clients.pulsar_auth
from change_agent.configuration.server_options import CassandraOptions, PulsarOptions
from clients.client_credentials import ClientCredentials, IssuedToken, TokenIssueError, issued_token
from clients.tls import tls_context
from schemas.errors import ConfigError

__all__ = ["PulsarAuth", "cassandra_tls", "pulsar_auth", "pulsar_tls"]

_KINDS: Final = ("token", "basic", "tls", "oauth2")
_OPTION: Final = "pulsarAuthParams"
_TIMEOUT_S: Final = 15.0


def cassandra_tls(config: CassandraOptions) -> ssl.SSLContext | None:
    """The context for Cassandra; None without TLS. Raises ConfigError."""
    if not config.cassandra_tls:
        return None
    context = tls_context(
        "cassandraTrustCertsFilePath",
        config.cassandra_trust_certs_file_path,
        check_hostname=config.cassandra_hostname_verification,
    )
    certificate = config.cassandra_certificate_file_path
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, config.cassandra_key_file_path)
        except (OSError, ssl.SSLError) as error:
            reason = f"{certificate} cannot be used with cassandraKeyFilePath ({error})"
            raise ConfigError.of("cassandraCertificateFilePath", reason) from error
    return context


def pulsar_tls(config: PulsarOptions) -> ssl.SSLContext:
    """The context for Pulsar's admin service. Raises ConfigError."""
    return tls_context(
        "tlsTrustCertsFilePath",
        config.tls_trust_certs_file_path,
        check_hostname=config.ssl_hostname_verification_enable,
        allow_insecure=config.ssl_allow_insecure_connection,
    )


def pulsar_auth(config: PulsarOptions) -> PulsarAuth | None:
    """The credentials for the broker and its admin service; None if not configured. Raises ConfigError."""
    if config.pulsar_auth_plugin_class_name is None:
        return None
    params = config.pulsar_auth_params
    return PulsarAuth(config.pulsar_auth_plugin_class_name, "" if params is None else params.get_secret_value())


class PulsarAuth(clients.pulsar_auth.PulsarAuth):
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
