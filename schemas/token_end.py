"""When a token (JWT, RFC 7519) ends: the broker's client says no more than that nothing answers when it has."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import cast

__all__ = ["ended_token"]


def ended_token(token: str, now_s: float) -> str | None:
    """What is wrong with a token that has ended, in words for the operator; None for any other, and for what is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end_s = float(cast("dict[str, float]", claims)["exp"])
        ended = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
    return f"the token ended at {ended}: give a new one" if end_s <= now_s else None
