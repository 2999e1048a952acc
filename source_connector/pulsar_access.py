"""The Pulsar client that the connector reads events with, made from what the host or the options say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pulsar

__all__ = ["PulsarOptions", "new_client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions:
    """How to reach the broker; `auth_plugin` is the class name or short name that Pulsar's clients share."""

    service_url: str
    auth_plugin: str = ""
    auth_params: str = ""
    trusted_certificates: str = ""
    allow_insecure: bool = False
    hostname_validation: bool = False

    def __repr__(self) -> str:
        return f"PulsarOptions(service_url={self.service_url!r}, auth_plugin={self.auth_plugin!r}, ...)"


def new_client(options: PulsarOptions) -> pulsar.Client:
    """A client; it connects when it is used."""
    import pulsar

    authentication = None
    # The Java client names its absence too.
    if options.auth_plugin and not options.auth_plugin.endswith("AuthenticationDisabled"):
        authentication = pulsar.Authentication(options.auth_plugin, options.auth_params)
    return pulsar.Client(
        options.service_url,
        authentication=authentication,
        operation_timeout_seconds=30,
        # Lines of the native client go to standard output, which is standard error in this process. A Python logger
        # would be called from its threads, which has been seen to hang at exit.
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
        tls_trust_certs_file_path=options.trusted_certificates or None,
        tls_allow_insecure_connection=options.allow_insecure,
        tls_validate_hostname=options.hostname_validation,
    )
