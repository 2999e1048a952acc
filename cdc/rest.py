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

    `httpx.get` makes a client for each request. Each client reads all certificates of the system, which takes 20 ms of
    CPU or more from the servers that are starting. A connection serves only one request, because the server may have
    been restarted before the next one.
    """
    # No proxy from the environment: it does not know this machine's loopback addresses.
    return httpx.Client(timeout=_TIMEOUT_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
