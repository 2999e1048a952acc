"""Finds out why a TLS connection to the broker fails: the Pulsar client itself says only ConnectError."""

from __future__ import annotations

import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from clients.certificate_refusal import certificate_refusal

__all__ = ["handshake_problem"]

_TIMEOUT_S: Final = 5.0
_TLS_PORT: Final = 6651


def handshake_problem(service_url: str, trusted: str, *, check_hostname: bool) -> str | None:
    """Connect to the first broker of a `pulsar+ssl` address, and return the problem.

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
            socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except OSError as error:
        refusal = certificate_refusal(str(error))
        hint = "; check tlsTrustCertsFilePath and sslHostnameVerificationEnable" if refusal else ""
        return f"{host} port {port}: {refusal or error}{hint}"
