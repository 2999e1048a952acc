"""Requests to the REST interfaces of servers on this machine."""

from __future__ import annotations

from functools import cache
from typing import Final

import httpx

__all__ = ["rest"]

_TIMEOUT_S: Final = 60


@cache
def rest() -> httpx.Client:
    """The one client of this process, for any thread.

    `httpx.get` makes one for each request, which reads all certificates of the system: 20 ms of CPU and more, taken from the
    servers that are waited for. A connection serves one request, for its server may be another one by the next.
    """
    # A proxy of the user's network knows nothing of our loopback.
    return httpx.Client(timeout=_TIMEOUT_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
