"""The Pulsar client with which the connector reads events, made from the host's settings or the options."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from clients.pulsar_auth import Issue, PulsarAuth
from clients.tls import certificate_refusal
from schemas.errors import ConfigError

if TYPE_CHECKING:
    import _pulsar
    import pulsar

__all__ = [
    "PulsarConnection",
    "PulsarOptions",
    "new_client",
    "schema_bytes",
    "schema_info",
    "schema_of_bytes",
]

_NEWEST: Final = -1
_AUTH_OPTION: Final = "pulsarAuthParams"
_HANDSHAKE_S: Final = 5.0
_TLS_PORT: Final = 6651


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions:
    """How to reach the broker; `auth_plugin` is the class name or short name that Pulsar's clients share."""

    service_url: str
    auth_plugin: str = ""
    auth_params: str = ""
    trusted_certificates: str = ""
    allow_insecure: bool = False
    hostname_validation: bool = False

    def auth(self, issue: Issue | None = None) -> PulsarAuth:
        """The credentials. `issue` fetches OAuth2 tokens for the admin service."""
        return PulsarAuth(self.auth_plugin, self.auth_params, _AUTH_OPTION, issue)

    def __repr__(self) -> str:
        return f"PulsarOptions(service_url={self.service_url!r}, auth_plugin={self.auth_plugin!r}, ...)"


def new_client(options: PulsarOptions, *, is_quiet: bool = False, timeout_s: int = 30) -> pulsar.Client:
    """A client, which connects when it is used. `is_quiet` discards its log.

    Raises ConfigError for an invalid service URL.
    """
    import pulsar

    authentication = None
    # Java clients also have a plugin for no authentication.
    if options.auth_plugin and not options.auth_plugin.endswith("AuthenticationDisabled"):
        authentication = pulsar.Authentication(options.auth_plugin, options.auth_params)
    try:
        return pulsar.Client(
            options.service_url,
            authentication=authentication,
            operation_timeout_seconds=timeout_s,
            # Lines of the native client go to standard output, which is standard error in this process. A Python logger
            # would be called from its threads, which has been seen to hang at exit.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
            if is_quiet
            else pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
            tls_trust_certs_file_path=options.trusted_certificates or None,
            tls_allow_insecure_connection=options.allow_insecure,
            tls_validate_hostname=options.hostname_validation,
        )
    except ValueError as error:
        text = f"{options.service_url!r} cannot be used ({error}); write it as pulsar://broker:6650"
        raise ConfigError.of("service URL", text) from error


class PulsarConnection:
    """The one Pulsar client of this process. It is created at its first use."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._client: pulsar.Client | None = None

    @property
    def where(self) -> str:
        """The broker's address, for messages."""
        return self._options.service_url

    def ended_token(self) -> str | None:
        """Why the token is no longer valid: it has expired, or its file cannot be read. The broker does not say so."""
        found = self._options.auth().ended()
        return None if found is None else f"{_AUTH_OPTION}: {found}"

    def hint(self) -> str:
        """Why the broker may refuse, as a text to append to the client's error, which names no reason. May be empty.

        It may take seconds, because the broker's certificate is fetched once more.
        """
        options = self._options
        found = self.ended_token()
        if found is None and not options.allow_insecure:
            found = _handshake_problem(
                options.service_url, options.trusted_certificates, check_hostname=options.hostname_validation
            )
        return "" if found is None else f" ({found})"

    def client(self) -> pulsar.Client:
        """The client; it connects when it is used."""
        with self._lock:
            if self._client is None:
                self._client = new_client(self._options)
            return self._client

    def close(self) -> None:
        """Send the acknowledgements and close all connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()


def schema_of_bytes(kind: str, name: str, text: str) -> pulsar.schema.Schema:
    """A schema that registers the text (`kind` is AVRO or JSON) and takes values that are encoded already."""
    from clients.pulsar_schema import ReadyBytes

    return ReadyBytes.of(name, text, kind)


def schema_info(client: pulsar.Client, topic: str, version: int = _NEWEST) -> _pulsar.SchemaInfo:
    """A topic's schema in the registry; creates nothing. Raises pulsar.PulsarException, TopicNotFound without one."""
    return client._client.get_schema_info(topic, version)  # noqa: SLF001  # the wrapper leaves it out


def schema_bytes(client: pulsar.Client, topic: str, version: int = _NEWEST) -> bytes:
    """The schema's data as `schema_info` has it. Raises pulsar.PulsarException."""
    try:
        text: str = schema_info(client, topic, version).schema()
    except UnicodeDecodeError as error:
        # The client decodes every schema as text, but a KEY_VALUE schema has binary lengths.
        return error.object
    return text.encode()


def _handshake_problem(service_url: str, trusted: str, *, check_hostname: bool) -> str | None:
    """Connect to the first broker of a `pulsar+ssl` address, and return the problem, which the client does not tell.

    None if it works, and for any other address. `trusted` is a PEM file; empty for the system's certificates.
    """
    parts = urlsplit(service_url.partition(",")[0])
    if parts.scheme != "pulsar+ssl" or parts.hostname is None:
        return None
    host, port = parts.hostname, parts.port or _TLS_PORT
    try:
        context = ssl.create_default_context(cafile=trusted or None)
        context.check_hostname = check_hostname
        with (
            socket.create_connection((host, port), timeout=_HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except OSError as error:
        refusal = certificate_refusal(str(error))
        hint = "; check tlsTrustCertsFilePath and sslHostnameVerificationEnable" if refusal else ""
        return f"{host} port {port}: {refusal or error}{hint}"
