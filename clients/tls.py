"""TLS contexts of clients, from the options of all products."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError

__all__ = ["certificate_refusal", "tls_context"]

_REFUSED: Final = re.compile(r"certificate verify failed: .+?(?=\.? \(_ssl\.c:\d+\)|\.?$)", re.MULTILINE)


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


def certificate_refusal(text: str) -> str | None:
    """OpenSSL's own message, without its source line; None if the text is not about a refused certificate."""
    found = _REFUSED.search(text)
    return None if found is None else found[0]
