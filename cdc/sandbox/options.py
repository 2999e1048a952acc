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
    """One value per option; raises ConfigError with every wrong one."""

    cassandra: str = "5.0"
    """The line of Cassandra: 5.0, 4.1, 4.0 or 3.11."""
    nodes: int = 1
    """Cassandra nodes on addresses of their own; 0 for none."""
    waiting_nodes: int = 0
    """Further nodes that are prepared and not started; each joins the cluster (bootstraps) at its first start."""
    data_centers: Sequence[str] = ()
    """The data centre of each node, those that wait last; none: all are in `datacenter1`."""
    pulsar: bool = True
    """Whether there is a Pulsar standalone."""
    commitlog_sync_ms: int = 200
    """How often a node syncs its commit log; what is not synced is not seen by CDC (Cassandra's default is 10,000)."""
    commitlog_segment_mb: int = 1
    """Size of a commit log segment (Cassandra's default is 32); the largest mutation is half of it."""
    cassandra_settings: Mapping[str, Json] = field(default_factory=dict)
    """More settings of ``cassandra.yaml``, laid over the sandbox's own; None removes one."""
    cassandra_passwords: bool = False
    """Whether nodes ask for a password and grant rights by role (`PasswordAuthenticator`, `CassandraAuthorizer`)."""
    cassandra_login: tuple[str, str] = DEFAULT_LOGIN
    """A name and password by which the sandbox itself may ask such nodes whether they serve; its superuser by default."""
    cassandra_tls: ssl.SSLContext | None = None
    """How the sandbox connects to ask that, where `client_encryption_options` lets nobody in without TLS."""
    cassandra_heap_mb: int = 384
    """Heap of each node."""
    cassandra_jvm_options: Sequence[str] = ()
    """More options of each node's JVM, behind the sandbox's own."""
    functions_runtime: FunctionsRuntime = "process"
    """Where Pulsar runs sources: a JVM each (Pulsar's default), or a thread of the broker, which starts faster."""
    pulsar_settings: Mapping[str, str] = field(default_factory=dict)
    """More settings of ``standalone.conf``, laid over the sandbox's own."""
    pulsar_token_file: Path | None = None
    """Where Pulsar asks for tokens: one of a superuser, by which its own parts log in, and the sandbox to ask whether it serves."""
    functions_worker_settings: Mapping[str, Json] = field(default_factory=dict)
    """More settings of ``functions_worker.yml``, laid over the sandbox's own."""
    pulsar_heap_mb: int = 400
    """Heap of Pulsar."""
    pulsar_jvm_options: Sequence[str] = ()
    """More options of Pulsar's JVM, behind the sandbox's own; not of the processes in which it runs sources."""

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
