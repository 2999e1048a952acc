"""The reason why a server's certificate was refused, from OpenSSL's message within the texts of clients' exceptions."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["certificate_refusal"]

_REFUSED: Final = re.compile(r"certificate verify failed: .+?(?=\.? \(_ssl\.c:\d+\)|\.?$)", re.MULTILINE)


def certificate_refusal(text: str) -> str | None:
    """OpenSSL's own message, without its source line; None if the text is not about a refused certificate."""
    found = _REFUSED.search(text)
    return None if found is None else found[0]
