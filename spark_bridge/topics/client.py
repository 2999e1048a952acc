"""A client for the broker, made from the options."""

from __future__ import annotations

import os

import pulsar

from spark_bridge.topics.authentication import client_authentication
from spark_bridge.topics.options import OAUTH2_PLUGIN, BridgeOptions

__all__ = ["open_client"]


def open_client(options: BridgeOptions) -> pulsar.Client:
    """A client for the broker; the caller closes it. Raises ConfigError."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    if options.auth_plugin_class_name == OAUTH2_PLUGIN:
        # Clients before 3.13 log the request that an issuer refuses, and so the secret.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(
        options.service_url,
        authentication=client_authentication(options),
        operation_timeout_seconds=options.operation_timeout_seconds,
        connection_timeout_ms=min(10, options.operation_timeout_seconds) * 1000,
        tls_trust_certs_file_path=options.tls_trust_certs_file_path,
        tls_allow_insecure_connection=options.tls_allow_insecure_connection,
        tls_validate_hostname=options.tls_hostname_verification_enable,
        logger=logger,
    )
