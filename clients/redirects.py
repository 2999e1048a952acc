"""Redirects of Pulsar's admin service: only the broker that owns a topic answers requests about it; others answer 307.

HTTP clients drop the credentials if a redirect leads to another host, and each broker is another host. The brokers' own
answers name the owners, so the owners get the credentials, too. But an address without encryption never gets them after
an encrypted one. This module does not import an HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from schemas.errors import CdcError

__all__ = ["Answer", "RedirectError", "redirected"]

# Without 303, which requires another method.
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_MOST: Final = 5


class Answer(Protocol):
    """The parts of an HTTP answer that are read. The names in `headers` are not case-sensitive."""

    @property
    def status_code(self) -> int:
        """As in HTTP."""

    @property
    def headers(self) -> Mapping[str, str]:
        """As in HTTP."""

    @property
    def url(self) -> object:
        """The requested address; `str` gives the whole address."""

    @property
    def content(self) -> bytes:
        """The body."""

    def json(self) -> Any:
        """The decoded JSON body. Raises ValueError if the body is not JSON."""


class RedirectError(CdcError):
    """A redirect from one address to another that is not followed."""

    def __init__(self, address: str, target: str, reason: str) -> None:
        self.address = address
        self.target = target
        self.reason = reason
        super().__init__(address, target, reason)

    def __str__(self) -> str:
        return f"{self.address} redirects to {self.target}, {self.reason}"


_A = TypeVar("_A", bound=Answer)


def redirected(ask: Callable[[str], _A], address: str) -> _A:
    """The answer after all redirects that start at `address`. A redirect without an address is returned as the answer.

    `ask` sends the same request, with credentials, to each address. Raises RedirectError for a loop, for too many
    redirects, and for an address that must not get the request.
    """
    answer = ask(address)
    seen = [str(answer.url)]
    while answer.status_code in _REDIRECTS and (location := answer.headers.get("location")):
        try:
            target = urljoin(seen[-1], location)
            reason = _refusal(seen, target)
        except ValueError as error:
            raise RedirectError(seen[-1], location, f"which is no address ({error})") from None
        if reason:
            raise RedirectError(seen[-1], target, reason)
        answer = ask(target)
        seen.append(target)
    return answer


def _refusal(seen: list[str], target: str) -> str | None:
    """The reason why a redirect to `target` is not followed; None if it is.

    Raises ValueError if it is not an address.
    """
    before, after = urlsplit(seen[-1]), urlsplit(target)
    if after.scheme not in ("http", "https") or not after.hostname or after.port == 0:
        return "which is no address of http or https; check what the brokers advertise"
    if (before.scheme, after.scheme) == ("https", "http"):
        return "which is not encrypted; let the brokers advertise their addresses of https"
    if target in seen:
        return "which was asked before: a loop; do the brokers agree on who owns the topic?"
    if len(seen) > _MOST:
        return f"and {_MOST} redirects were followed before; do the brokers agree on who owns the topic?"
    return None
