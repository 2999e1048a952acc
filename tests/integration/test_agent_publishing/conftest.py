"""Servers for all files of this folder, started once, and the agent between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from tests.integration.test_agent_publishing.strict_servers import (
    NAMESPACE,
    NODE_PASSWORD,
    PREFIX,
    TopicOf,
    strict_options,
)
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.servers.certificates import CertificateAuthority
from tests.topics.events_topic import EventsTopic

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Certificates of the broker, of the node, and of a client whose role is `writer`."""
    made = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    for name in ("broker", "node", "writer"):
        made.issue(name)
    return made


@pytest.fixture(scope="package")
def servers(authority: CertificateAuthority) -> Iterator[Sandbox]:
    """A node and a Pulsar that both take TLS, too; Pulsar with authorization, de-duplication and small messages."""
    with Sandbox(strict_options(authority)) as running:
        admin = f"{running.pulsar.admin_url}/admin/v2"
        rest().put(f"{admin}/namespaces/{NAMESPACE}", json={}).raise_for_status()
        # No topic may be deleted because a test leaves it idle for a minute.
        rest().post(
            f"{admin}/namespaces/{NAMESPACE}/inactiveTopicPolicies",
            json={
                "deleteWhileInactive": False,
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 600,
            },
        ).raise_for_status()
        yield running


@pytest.fixture(scope="package")
def session(servers: Sandbox) -> Iterator[Session]:
    """A session with the node."""
    with cluster_of(servers.node, login=PlainTextAuthProvider(*DEFAULT_LOGIN)) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="package")
def node_login(session: Session, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Options by which an agent logs in to the node with a role that has no further rights."""
    session.execute(f"CREATE ROLE agent WITH LOGIN = true AND PASSWORD = '{NODE_PASSWORD}'")
    file = tmp_path_factory.mktemp("login") / "password"
    file.write_text(f"{NODE_PASSWORD}\n")
    return {"username": "agent", "passwordFile": str(file)}


@pytest.fixture
def keyspace(session: Session) -> str:
    """A keyspace of the test's own with tables a and b."""
    name = f"strict_{next(_numbers)}"
    make_keyspace(session, name)
    for table in ("a", "b"):
        session.execute(f"CREATE TABLE {name}.{table} (pk text PRIMARY KEY, v text) WITH cdc = true")
    return name


@pytest.fixture(scope="package")
def agent(
    servers: Sandbox, node_login: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """The agent of the node, with all rights. A test that stops it must start it again."""
    folder = tmp_path_factory.mktemp("agent")
    process = AgentProcess.for_node(
        servers.node, servers.pulsar, folder, topicPrefix=PREFIX, eventsTopicsCheckIntervalMs=1_000, **node_login
    )
    process.start()
    yield process
    assert process.stop() == 0, process.log_tail()


@pytest.fixture
def topic_of(servers: Sandbox) -> Iterator[TopicOf]:
    """The events topic of a table, to read from."""
    with ExitStack() as stack:
        yield lambda table: stack.enter_context(EventsTopic(servers.pulsar, f"{PREFIX}{table}"))
