"""Sessions of the tests with Cassandra. Their timeouts are long, for busy machines and nodes that have just started."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cassandra import ConsistencyLevel
from cassandra.auth import AuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy

from source_connector.errors import FetchError
from tests.servers.interface import CassandraServer

__all__ = ["answered", "cluster_of", "make_keyspace"]

_PATIENCE_S = 60.0
_ASKED_FOR_S = 180.0
_Answer = TypeVar("_Answer")


def cluster_of(
    *nodes: CassandraServer, consistency_level: int = ConsistencyLevel.LOCAL_ONE, login: AuthProvider | None = None
) -> Cluster:
    """The driver's cluster object that connects only to these nodes. Use it in a `with` block."""
    addresses = [node.address for node in nodes]
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy(addresses),
        consistency_level=consistency_level,
        request_timeout=_PATIENCE_S,
    )
    return Cluster(
        addresses,
        port=nodes[0].native_port,
        auth_provider=login,
        connect_timeout=_PATIENCE_S,
        control_connection_timeout=_PATIENCE_S,
        max_schema_agreement_wait=_PATIENCE_S,
        idle_heartbeat_timeout=_PATIENCE_S,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )


def make_keyspace(session: Session, name: str, copies: int = 1) -> None:
    """Create a keyspace with this number of replicas."""
    replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
    session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")


def answered(ask: Callable[[], _Answer]) -> _Answer:
    """Return the result of `ask`, a call of the connector's client. Retry it after timeouts, which are a few
    seconds."""
    deadline = time.monotonic() + _ASKED_FOR_S
    while True:
        try:
            return ask()
        except FetchError as error:
            is_timeout = "OperationTimedOut" in str(error) or "timed out" in str(error).lower()
            if not is_timeout or time.monotonic() > deadline:
                raise
