"""Driver sessions with a line's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import WhiteListRoundRobinPolicy

from cdc.faults.line import FaultLine
from cdc.sandbox.cassandra_node import CassandraNode

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["host_id", "session_of"]


@contextmanager
def session_of(line: FaultLine) -> Iterator[Session]:
    """A session with all nodes."""
    addresses, port = line.contact
    with Cluster(addresses, port=port, connect_timeout=20) as cluster:
        yield cluster.connect()


def host_id(node: CassandraNode) -> str:
    """How agents name the node."""
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([node.address]), request_timeout=60)
    profiles = {EXEC_PROFILE_DEFAULT: profile}
    with Cluster([node.address], port=node.native_port, connect_timeout=20, execution_profiles=profiles) as cluster:
        return str(cluster.connect().execute("SELECT host_id FROM system.local").one().host_id)
