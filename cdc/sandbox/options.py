"""The options of a sandbox."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from cdc.sandbox.addresses import MAX_NODES
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from cdc.sandbox.versions import CASSANDRA_VERSIONS
from schemas.errors import ConfigError, ConfigProblem

__all__ = ["FunctionsRuntime", "Json", "SandboxOptions"]

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
FunctionsRuntime: TypeAlias = Literal["process", "thread"]

_MAX_SYNC_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """The options, with their defaults. The constructor raises ConfigError with all wrong values."""

    cassandra: str = "5.0"
    """The line of Cassandra: 5.0, 4.1, 4.0 or 3.11."""
    nodes: int = 1
    """Number of Cassandra nodes, each with its own address; 0 for none."""
    waiting_nodes: int = 0
    """Number of further nodes that are prepared but not started.

    Each joins the cluster (bootstraps) at its first start.
    """
    data_centers: Sequence[str] = ()
    """The data center of each node, the waiting nodes last. If empty, all nodes are in `datacenter1`."""
    pulsar: bool = True
    """Whether there is a Pulsar standalone."""
    commitlog_sync_ms: int = 200
    """The period in which a node syncs its commit log (Cassandra's default is 10,000). CDC sees only synced changes."""
    commitlog_segment_mb: int = 1
    """Size of a commit log segment (Cassandra's default is 32); the largest mutation is half of it."""
    cassandra_settings: Mapping[str, Json] = field(default_factory=dict)
    """More settings of ``cassandra.yaml``, which replace the sandbox's own. The value None removes a setting."""
    cassandra_passwords: bool = False
    """If True, nodes ask for passwords and check the roles' rights (`PasswordAuthenticator`, `CassandraAuthorizer`)."""
    cassandra_login: tuple[str, str] = DEFAULT_LOGIN
    """Name and password with which the sandbox checks that such nodes serve clients; by default the superuser's."""
    cassandra_tls: ssl.SSLContext | None = None
    """TLS for this check, if `client_encryption_options` of the nodes require it."""
    cassandra_heap_mb: int = 384
    """Heap of each node."""
    cassandra_jvm_options: Sequence[str] = ()
    """More options for the JVM of each node, after the sandbox's own."""
    functions_runtime: FunctionsRuntime = "process"
    """Where Pulsar runs sources: in a JVM each (Pulsar's default), or in threads of the broker, which start faster."""
    pulsar_settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of ``standalone.conf``, which replace the sandbox's own."""
    pulsar_token_file: Path | None = None
    """A superuser's token, if Pulsar requires tokens.

    Pulsar's own parts log in with it, and the sandbox checks with it that Pulsar is ready.
    """
    functions_worker_settings: Mapping[str, Json] = field(default_factory=dict)
    """More settings of ``functions_worker.yml``, which replace the sandbox's own."""
    pulsar_heap_mb: int = 400
    """Heap of Pulsar."""
    pulsar_jvm_options: Sequence[str] = ()
    """More options for Pulsar's JVM, after the sandbox's own. Processes of sources do not get them."""

    def __post_init__(self) -> None:
        lines = ", ".join(CASSANDRA_VERSIONS)
        runtimes = get_args(FunctionsRuntime)
        checks = [
            ("cassandra", self.cassandra in CASSANDRA_VERSIONS, f"{self.cassandra!r} is not one of {lines}"),
            ("nodes", 0 <= self.nodes <= MAX_NODES, f"{self.nodes} is not between 0 and {MAX_NODES}"),
            (
                "waiting_nodes",
                0 <= self.waiting_nodes <= (max(0, MAX_NODES - self.nodes) if self.nodes else 0),
                f"{self.waiting_nodes} cannot join {self.nodes} nodes; there are {MAX_NODES} at most",
            ),
            (
                "data_centers",
                len(self.data_centers) in {0, self.nodes + self.waiting_nodes},
                f"{len(self.data_centers)} names for {self.nodes + self.waiting_nodes} nodes",
            ),
            ("nodes", self.nodes > 0 or self.pulsar, "0 nodes and no Pulsar leave nothing to start"),
            (
                "commitlog_sync_ms",
                1 <= self.commitlog_sync_ms <= _MAX_SYNC_MS,
                f"{self.commitlog_sync_ms} is not between 1 and {_MAX_SYNC_MS} milliseconds",
            ),
            (
                "commitlog_segment_mb",
                1 <= self.commitlog_segment_mb <= 1024,
                f"{self.commitlog_segment_mb} is not between 1 and 1024 MiB",
            ),
            (
                "functions_runtime",
                self.functions_runtime in runtimes,
                f"{self.functions_runtime!r} is not one of {', '.join(runtimes)}",
            ),
        ]
        problems = [ConfigProblem(option=option, reason=reason) for option, right, reason in checks if not right]
        if problems:
            raise ConfigError(problems)
