"""TLS contexts of clients, from the options of all products."""

from __future__ import annotations

import ssl
from pathlib import Path

from schemas.errors import ConfigError

__all__ = ["tls_context"]


def tls_context(
    option: str, trusted: str | Path | None, *, check_hostname: bool = True, allow_insecure: bool = False
) -> ssl.SSLContext:
    """A context that trusts the certificates in a PEM file, or those of the system.

    `option` is the name of the file's option, for errors. `allow_insecure` accepts any certificate. Raises ConfigError.
    """
    try:
        context = ssl.create_default_context(cafile=str(trusted) if trusted else None)
    except OSError as error:  # ssl.SSLError, too
        raise ConfigError.of(option, f"{trusted} holds no certificates in PEM ({error})") from None
    context.check_hostname = check_hostname and not allow_insecure
    if allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    return context
