"""The interface of servers for tests, for servers of the sandbox and of docker compose.

Tests that control the servers' processes (kill, restart, two nodes) use the ``sandbox`` fixture or start their own
servers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION

__all__ = ["CassandraServer", "ComposeCassandra", "ComposePulsar", "PulsarServer"]

REPOSITORY: Final = Path(__file__).parents[2]


class CassandraServer(Protocol):
    """A Cassandra node with CDC, as far as a test may use it."""

    @property
    def version(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def native_port(self) -> int: ...
    @property
    def cdc_raw(self) -> Path: ...
    @property
    def commitlog_dir(self) -> Path: ...
    def flush(self, keyspace: str, *tables: str) -> None:
        """Flush tables, by default all of the keyspace."""


class PulsarServer(Protocol):
    """A Pulsar standalone, as far as a test may use it."""

    @property
    def version(self) -> str: ...
    @property
    def service_url(self) -> str: ...
    @property
    def admin_url(self) -> str: ...


class ComposeCassandra:
    """The service ``cassandra`` of docker-compose.yml, with its published port and its shared folders."""

    version = CASSANDRA_VERSIONS["5.0"]
    address = "127.0.0.1"
    native_port = 9042
    _folder: Final = REPOSITORY / "build" / "compose" / "cassandra"
    cdc_raw = _folder / "cdc_raw"
    commitlog_dir = _folder / "commitlog"

    def flush(self, keyspace: str, *tables: str) -> None:
        """Flush tables by nodetool in the container."""
        _compose(["exec", "--no-TTY", "cassandra", "nodetool", "flush", keyspace, *tables])


class ComposePulsar:
    """The service ``pulsar`` of docker-compose.yml, with its published ports."""

    version = PULSAR_VERSION
    service_url = "pulsar://127.0.0.1:6650"
    admin_url = "http://127.0.0.1:8080"


def _compose(arguments: Sequence[str]) -> None:
    subprocess.run(["docker", "compose", *arguments], cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
