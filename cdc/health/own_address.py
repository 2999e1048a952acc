"""Whether an agent's contact points are addresses of its own machine. An agent belongs to one node."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cdc.health.findings import Finding, warning

__all__ = ["elsewhere"]


def elsewhere(contact_points: Sequence[str]) -> Iterator[Finding]:
    """A finding for each contact point that is no address of this machine.

    With the address of another node, the agent takes that node's id. Its events then name the wrong node, and the agent
    of that node waits for it.
    """
    for host in contact_points:
        if not _is_here(host):
            text = "is no address of this machine: the agent would publish the changes of this node as those of another one"
            remedy = "set contactPoints to the address of the agent's own node; nothing to do if it has this address by a network of containers"
            yield warning(host, text, remedy)


def _is_here(host: str) -> bool:
    """True if a socket can be bound to an address of the host, or if it has none: then it is reported elsewhere."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as bound:
            bound.bind(address)
            return True
    return False
