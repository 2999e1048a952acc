"""Retries of requests to a service that does not answer, or is starting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx
import tenacity

from clients.redirects import RedirectError
from runtime.backoff import Backoff

__all__ = ["patiently"]

_BACKOFF: Final = Backoff(0.1, 2)


def patiently(ask: Callable[[], httpx.Response], patience_s: float) -> httpx.Response:
    """Call `ask` until it returns an answer that is no 5xx, but no longer than `patience_s`. Return its last answer.

    Raises httpx.TransportError or RedirectError if the last call of `ask` raised it.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_delay(patience_s),
        wait=lambda state: _BACKOFF.pause_s(state.attempt_number),
        retry=tenacity.retry_if_exception_type((httpx.TransportError, RedirectError))
        | tenacity.retry_if_result(lambda response: response.status_code >= 500),
        retry_error_callback=_last_outcome,
    )
    return retrying(ask)


def _last_outcome(state: tenacity.RetryCallState) -> httpx.Response:
    assert state.outcome is not None
    response: httpx.Response = state.outcome.result()
    return response
