"""Why a server's certificate was refused, from OpenSSL's message and the exceptions that clients wrap around it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["certificate_refusal"]

_REFUSED: Final = re.compile(r"certificate verify failed: .+?(?=\.? \(_ssl\.c:\d+\)|\.?$)", re.MULTILINE)


def certificate_refusal(text: str) -> str | None:
    """OpenSSL's own words, without its source line; None if the text is not about a certificate."""
    found = _REFUSED.search(text)
    return None if found is None else found[0]
