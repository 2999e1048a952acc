"""Loopback addresses and ports for a sandbox, without collisions.

Linux answers on all of 127.0.0.0/8, so each sandbox takes its own block 127.x.y.0/24. Every Cassandra node has its own
address in the block, and all nodes have the same native port, as drivers that discover a cluster expect. A socket
claims the block: it is bound to the block's address .254 (it never listens), and the sandbox's supervisor holds it
open. The kernel lets no process of any user bind this address a second time, and frees it when the supervisor ends.

Ports are the usual ones. If another process holds a usual port on all addresses, the next free port is taken.
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
    """The ports of the sandbox's nodes. Every node has the same ports, on its own address."""

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
    """The /24 block of loopback addresses of one sandbox. ``prefix``: such as ``127.41.7``."""

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
    """A block that no other sandbox has, and the socket that claims it. The caller owns the socket.

    ``wanted``: the block that must be claimed, for a sandbox that starts again on its old data. Raises SandboxError if
    this block, or after many attempts any block, is not free.
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
        # as servers do: connections of an earlier run in TIME_WAIT then do not keep the port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # fails if a listener on all addresses has set SO_REUSEADDR, where `bind` does not
        except OSError:
            return False
    return True
