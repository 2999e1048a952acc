"""Real servers for integration tests, started once a session and shared: isolate by keyspace and topic names.

``CDC_TEST_SERVERS`` says which: ``sandbox`` (default) starts them here, ``compose`` takes those of docker-compose.yml,
which must be up (`make test-compose`). A server that does not start fails the tests that need it; nothing is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION
from schemas.errors import ConfigError
from tests.servers import CassandraServer, ComposeCassandra, ComposePulsar, PulsarServer

_CHOICES = ("sandbox", "compose")


def _choice() -> str:
    choice = os.environ.get("CDC_TEST_SERVERS", "sandbox")
    if choice not in _CHOICES:
        raise pytest.UsageError(f"CDC_TEST_SERVERS is {choice!r}; it must be one of {', '.join(_CHOICES)}")
    return choice


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a wrong choice before anything runs."""
    _choice()


def pytest_report_header(config: pytest.Config) -> str:
    """Which servers the integration tests run on."""
    try:
        java = str(java_home())
    except ConfigError as error:  # the fast tests do without
        java = str(error)
    return f"servers: {_choice()}, Cassandra {CASSANDRA_VERSIONS['5.0']}, Pulsar {PULSAR_VERSION}, {java}"


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One Cassandra 5.0 node and one Pulsar, shared by the session. Whoever stops a server starts it again."""
    # sources run in the broker's JVM: a JVM for each would cost seconds and 250 MB a test
    options = SandboxOptions(commitlog_sync_ms=100, functions_runtime="thread")
    with Sandbox(options) as running:
        yield running


@pytest.fixture(scope="session")
def cassandra_node(request: pytest.FixtureRequest) -> CassandraServer:
    """The shared Cassandra node."""
    if _choice() == "compose":
        return ComposeCassandra()
    running: Sandbox = request.getfixturevalue("sandbox")
    return running.node


@pytest.fixture(scope="session")
def pulsar(request: pytest.FixtureRequest) -> PulsarServer:
    """The shared Pulsar standalone."""
    if _choice() == "compose":
        return ComposePulsar()
    running: Sandbox = request.getfixturevalue("sandbox")
    return running.pulsar
