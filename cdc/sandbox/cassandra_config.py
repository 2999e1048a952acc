"""The configuration that the sandbox gives a Cassandra node: ``cassandra.yaml``, logging and JVM options.

The old names of the settings (``..._in_mb``, ``..._in_ms``) are used because all lines from 3.11 to 5.0 take them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.sandbox.addresses import CassandraPorts
from cdc.sandbox.options import Json, SandboxOptions

__all__ = ["CDC_SETTINGS", "initial_token", "jvm_options", "node_settings", "write_configuration"]

CDC_SETTINGS: Final[dict[str, Json]] = {
    "cdc_enabled": True,
    "cdc_total_space_in_mb": 1024,
    "commitlog_sync": "periodic",
}
"""The settings with which a node writes ``cdc_raw``; ``docker-compose.yml`` sets the same."""

# If a sync of the commit log is late, writes wait for it. On a busy machine a sync may take longer than the default
# timeout of two seconds.
_PATIENT_WRITES: Final[dict[str, Json]] = {
    "write_request_timeout_in_ms": 30_000,
    "counter_write_request_timeout_in_ms": 30_000,
    "cas_contention_timeout_in_ms": 10_000,
}

_JOINING_RING_DELAY_MS: Final = 10_000

_OPENED_PACKAGES: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
_EXPORTED_PACKAGES: Final = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
)
_LOGBACK: Final = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


def initial_token(node: int, nodes: int) -> int:
    """The token of a node (numbered from 1). Each of the first ``nodes`` nodes has an equal part of the Murmur3 ring.

    Nodes with higher numbers, which join later, halve the parts of node 1, 2, ...
    """
    part = 2**64 // nodes
    return -(2**63) + ((node - 1) % nodes) * part + (part // 2 if node > nodes else 0)


def node_settings(
    folder: Path,
    *,
    address: str,
    seed: str,
    ports: CassandraPorts,
    token: int,
    options: SandboxOptions,
    joins: bool = False,
) -> dict[str, Json]:
    """``cassandra.yaml`` of a node with its files below ``folder``.

    A node that ``joins`` gets its data from the others.
    """
    settings: dict[str, Json] = {
        **CDC_SETTINGS,
        "cluster_name": "sandbox",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "GossipingPropertyFileSnitch" if options.data_centers else "SimpleSnitch",
        "num_tokens": 1,
        "initial_token": str(token),
        "auto_bootstrap": joins,
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": seed}]}
        ],
        "listen_address": address,
        "rpc_address": address,
        "native_transport_port": ports.native,
        "storage_port": ports.storage,
        "start_native_transport": True,
        "data_file_directories": [str(folder / "data")],
        "commitlog_directory": str(folder / "commitlog"),
        "cdc_raw_directory": str(folder / "cdc_raw"),
        "hints_directory": str(folder / "hints"),
        "saved_caches_directory": str(folder / "saved_caches"),
        "commitlog_sync_period_in_ms": options.commitlog_sync_ms,
        "commitlog_segment_size_in_mb": options.commitlog_segment_mb,
        **_PATIENT_WRITES,
    }
    if options.cassandra == "3.11":
        settings["start_rpc"] = False  # Thrift, gone in 4.0
    if options.cassandra_passwords:
        settings |= {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
    settings.update(options.cassandra_settings)
    return {name: value for name, value in settings.items() if value is not None}


def write_configuration(folder: Path, settings: Mapping[str, Json], data_center: str | None) -> None:
    """Write ``conf/`` and make the node's folders. ``cassandra.yaml`` is written as JSON, which is valid YAML."""
    for name in ("conf", "tmp", "data", "commitlog", "cdc_raw", "hints", "saved_caches"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "cassandra.yaml").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "conf" / "logback.xml").write_text(_LOGBACK)
    if data_center is not None:
        (folder / "conf" / "cassandra-rackdc.properties").write_text(f"dc={data_center}\nrack=rack1\n")


def jvm_options(folder: Path, *, heap_mb: int, jamm: Path, joins: bool = False) -> list[str]:
    """JVM options for a small node that starts fast: one compiler, the serial collector, no waiting for gossip.

    A node that ``joins`` waits until the others have told it about the ring.
    """
    return [
        f"-Xms{heap_mb // 4}m",  # Cassandra locks the memory in RAM that is committed at its start
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Xss384k",
        f"-javaagent:{jamm}",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
        *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED_PACKAGES),
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlogback.configurationFile={folder / 'conf' / 'logback.xml'}",
        f"-Dcassandra.config=file://{folder / 'conf' / 'cassandra.yaml'}",
        f"-Dcassandra.storagedir={folder}",
        f"-Dcassandra.logdir={folder}",
        "-Dcassandra-foreground=yes",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        # A node that joins waits so long for its seeds (StorageService), and does not start if it has seen none.
        f"-Dcassandra.ring_delay_ms={_JOINING_RING_DELAY_MS if joins else 0}",
        "-Dcassandra.superuser_setup_delay_ms=0",
        # The default of 2 ms causes most of the CPU time of an idle node.
        "-Dcassandra.approximate_time_precision_ms=20",
        "-Dcassandra.shutdown_announce_in_ms=0",
    ]
