"""The end of a token (JWT, RFC 7519). The broker's client does not report it: it only gets no answer."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime

__all__ = ["ended_token"]


def ended_token(token: str, now_s: float) -> str | None:
    """A message for the operator about a token that has ended; None for any other token, and if it is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end_s = float(claims["exp"])
        ended = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
    return f"the token ended at {ended}: give a new one" if end_s <= now_s else None
