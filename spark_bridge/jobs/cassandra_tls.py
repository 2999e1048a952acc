"""TLS to Cassandra for the jobs that read it. The driver and every executor must have the files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from clients.tls import tls_context
from schemas.errors import ConfigError

__all__ = ["CassandraTls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraTls:
    """PEM files: the trusted authorities (None: the system's), and for mutual TLS our certificate and its key."""

    trusted: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """A context for one connection. Raises ConfigError."""
        if self.key is not None and self.certificate is None:
            raise ConfigError.of("tls.key", f"{self.key} is the key of no certificate; give tls.certificate too")
        context = tls_context("tls.trusted", self.trusted, check_hostname=self.verify_hostname)
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                reason = f"{self.certificate} cannot be used with the key {self.key} ({error})"
                raise ConfigError.of("tls.certificate", reason) from None
        return context
