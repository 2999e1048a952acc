"""Loopback addresses and ports for a sandbox, without collisions.

Linux answers on all of 127.0.0.0/8, so each sandbox takes a block 127.x.y.0/24 of its own: every Cassandra node gets
its own address in it and all nodes share one native port, as drivers that discover a cluster expect. A block is
claimed by a socket that is bound (never listening) on its address .254 and held by the sandbox's supervisor: the
kernel lets nobody bind it a second time, whoever the user is, and frees it when the supervisor ends.

Ports are the usual ones, unless somebody holds one on all addresses; then the next free one is taken.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.sandbox.errors import SandboxError

__all__ = ["MAX_NODES", "AddressBlock", "CassandraPorts", "PulsarPorts", "claim_block"]

MAX_NODES: Final = 50
_PULSAR_HOST: Final = 100
_CLAIM_HOST: Final = 254
_CLAIM_PORT: Final = 9042
_ATTEMPTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraPorts:
    """The ports that every node of the sandbox uses on its own address."""

    native: int
    storage: int
    jolokia: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarPorts:
    """The ports of the Pulsar standalone."""

    broker: int
    web: int
    bookie: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressBlock:
    """A /24 of loopback addresses that belongs to one sandbox. ``prefix`` is such as ``127.41.7``."""

    prefix: str

    def node(self, number: int) -> str:
        """The address of node 1, 2, ..."""
        return f"{self.prefix}.{number}"

    @property
    def pulsar(self) -> str:
        """The address of Pulsar."""
        return f"{self.prefix}.{_PULSAR_HOST}"

    def cassandra_ports(self, nodes: int) -> CassandraPorts:
        """Ports that are free on the addresses of all nodes; raises SandboxError if there are none."""
        hosts = [self.node(number) for number in range(1, nodes + 1)]
        return CassandraPorts(
            native=_free_port(hosts, 9042),
            storage=_free_port(hosts, 7000),
            jolokia=_free_port(hosts, 8778),
        )

    def pulsar_ports(self) -> PulsarPorts:
        """Ports that are free on Pulsar's address; raises SandboxError if there are none."""
        hosts = [self.pulsar]
        return PulsarPorts(broker=_free_port(hosts, 6650), web=_free_port(hosts, 8080), bookie=_free_port(hosts, 3181))


def claim_block(wanted: AddressBlock | None = None) -> tuple[AddressBlock, socket.socket]:
    """A block that no other sandbox has, and the socket that claims it; the caller owns the socket.

    ``wanted`` asks for one block, which a sandbox that starts again on its old data needs. Raises SandboxError when
    the block, or after many attempts any block, cannot be had.
    """
    for _ in range(1 if wanted else _ATTEMPTS):
        block = wanted or AddressBlock(prefix=f"127.{random.randint(1, 254)}.{random.randint(0, 254)}")
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((f"{block.prefix}.{_CLAIM_HOST}", _CLAIM_PORT))
        except OSError:
            claim.close()
            continue
        return block, claim
    if wanted:
        raise SandboxError(f"the addresses {wanted.prefix}.* are in use: another sandbox runs on them; end it first")
    raise SandboxError("no free loopback addresses in 127.0.0.0/8: does `ip addr show lo` list 127.0.0.1/8?")


def _free_port(hosts: Sequence[str], first: int) -> int:
    for port in range(first, first + 100):
        if all(_bindable(host, port) for host in hosts):
            return port
    raise SandboxError(f"no free port from {first} to {first + 99} on {', '.join(hosts)}")


def _bindable(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # as servers do: connections of an earlier run that linger in TIME_WAIT are no obstacle
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # a listener on all addresses with SO_REUSEADDR shows here only
        except OSError:
            return False
    return True
