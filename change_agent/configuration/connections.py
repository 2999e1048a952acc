"""TLS and credentials for Cassandra and Pulsar, from the options that agent.yaml and line.yaml share."""

from __future__ import annotations

import ssl

from change_agent.configuration.pulsar_auth import PulsarAuth
from change_agent.configuration.server_options import CassandraOptions, PulsarOptions
from clients.tls import tls_context
from schemas.errors import ConfigError

__all__ = ["cassandra_tls", "pulsar_auth", "pulsar_tls"]


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
