"""Driver sessions with a line's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cassandra import DriverException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import ConstantReconnectionPolicy, WhiteListRoundRobinPolicy
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from cdc.sandbox.cassandra_node import CassandraNode
from tests.fault_kit.contact import Contact
from tests.fault_kit.line import FaultLine

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["host_id", "make_tables_and_start_agents", "open_session", "session_of"]

_TIMEOUT_S: Final = 120.0
_CONNECT_S: Final = 300.0


@contextmanager
def open_session(contact: Contact, profile: ExecutionProfile) -> Iterator[Session]:
    """A session; the connection is retried, because a node that has just started may answer slowly on a busy
    machine."""
    cluster = Cluster(
        contact.addresses,
        port=contact.port,
        auth_provider=None if contact.login is None else PlainTextAuthProvider(*contact.login),
        connect_timeout=_TIMEOUT_S,
        control_connection_timeout=_TIMEOUT_S,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=None),
    )
    try:
        yield _connect(cluster)
    finally:
        cluster.shutdown()


@retry(
    retry=retry_if_exception_type((NoHostAvailable, DriverException, OSError)),
    wait=wait_fixed(1),
    stop=stop_after_delay(_CONNECT_S),
    reraise=True,
)
def _connect(cluster: Cluster) -> Session:
    return cluster.connect()


@contextmanager
def session_of(line: FaultLine) -> Iterator[Session]:
    """A session with all nodes."""
    with open_session(line.contact, ExecutionProfile(request_timeout=_TIMEOUT_S)) as session:
        yield session


def make_tables_and_start_agents(line: FaultLine, statements: Sequence[str]) -> None:
    """Execute the statements and start all agents, with topics that keep all messages.

    Raises FaultRunError when an agent ends by itself.
    """
    line.retain_everything()
    with session_of(line) as session:
        for statement in statements:
            session.execute(statement, timeout=240)
    for agent in line.agents:
        agent.launch()
        line.wait_for_agent(agent)


def host_id(line: FaultLine, node: CassandraNode) -> str:
    """The node's host id, by which agents name the node."""
    policy = WhiteListRoundRobinPolicy([node.address])
    profile = ExecutionProfile(load_balancing_policy=policy, request_timeout=_TIMEOUT_S)
    with open_session(replace(line.contact, addresses=[node.address]), profile) as session:
        return str(session.execute("SELECT host_id FROM system.local").one().host_id)
