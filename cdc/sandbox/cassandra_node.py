"""One Cassandra node of the sandbox."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from cdc.rest import rest
from cdc.sandbox.addresses import AddressBlock, CassandraPorts
from cdc.sandbox.artifacts import cassandra_class_path, ensure
from cdc.sandbox.cassandra_config import initial_token, jvm_options, node_settings, write_configuration
from cdc.sandbox.errors import SandboxError
from cdc.sandbox.native_protocol import NotServingError, count_rows
from cdc.sandbox.options import Json, SandboxOptions
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.server import Server, server_environment
from cdc.sandbox.supervision import Launch, SupervisorChannel
from cdc.sandbox.versions import CASSANDRA_VERSIONS

__all__ = ["CassandraNode"]

_STORAGE_SERVICE: Final = "org.apache.cassandra.db:type=StorageService"
_GUARDRAILS: Final = "org.apache.cassandra.db:type=Guardrails"
_JOLOKIA_USER: Final = "sandbox"
_HALF_A_TABLE: Final = b"No partition columns found for table"
_PAST_HALF_TABLES: Final = "-Dcassandra.ignore_corrupted_schema_tables=true"
_OPERATION_TIMEOUT_S: Final = 180.0
_REPAIR_TIMEOUT_S: Final = 300.0
_REPAIR_LOOK_S: Final = 0.2


class CassandraNode(Server):
    """A Cassandra node with CDC enabled. Node 1 is the seed."""

    # Without a ring delay, a node gives up if the seed does not answer its first gossip message within a second.
    start_attempts = 3

    def __init__(
        self,
        number: int,
        folder: Path,
        block: AddressBlock,
        ports: CassandraPorts,
        options: SandboxOptions,
        supervisor: SupervisorChannel,
    ) -> None:
        name = f"cassandra-{number}"
        super().__init__(name, folder / "logs" / f"{name}.log", supervisor)
        self._sandbox = folder
        self._options = options
        self._jolokia_password = secrets.token_urlsafe(16)
        self.number = number
        self.address = block.node(number)
        """The loopback address of all its ports."""
        self.ports = ports
        self.native_port = ports.native
        self.folder = folder / name
        """The folder of all files of the node."""
        self._configure(block)

    @property
    def version(self) -> str:
        """The release, such as ``5.0.9``."""
        return CASSANDRA_VERSIONS[self._options.cassandra]

    @property
    def cassandra_yaml(self) -> Path:
        """The node's configuration file."""
        return self.folder / "conf" / "cassandra.yaml"

    @property
    def data_dir(self) -> Path:
        """Where the node keeps its tables."""
        return self.folder / "data"

    @property
    def commitlog_dir(self) -> Path:
        """Where the node writes its commit log segments."""
        return self.folder / "commitlog"

    @property
    def cdc_raw(self) -> Path:
        """Where the node links (3.11: moves) the segments that hold changes of tables with ``cdc = true``."""
        return self.folder / "cdc_raw"

    @property
    def details(self) -> dict[str, str]:
        """Where clients connect, and the node's folders."""
        return {
            "contact_point": f"{self.address}:{self.native_port}",
            "cdc_raw": str(self.cdc_raw),
            "commitlog": str(self.commitlog_dir),
            "cassandra_yaml": str(self.cassandra_yaml),
        }

    def flush(self, keyspace: str, *tables: str) -> None:
        """Flush tables, by default all tables of the keyspace, as ``nodetool flush`` does."""
        self._invoke("forceKeyspaceFlush(java.lang.String,[Ljava.lang.String;)", [keyspace, list(tables)])

    def drain(self) -> None:
        """Drain the node, as ``nodetool drain`` does. It takes no writes until it is started again."""
        self._invoke("drain", [])

    def decommission(self) -> None:
        """Give all data to the other nodes and leave the cluster for ever, as ``nodetool decommission`` does."""
        self._invoke("decommission(boolean)", [True])

    def repair(self, keyspace: str) -> None:
        """Repair all of a keyspace with all its replicas, as ``nodetool repair --full`` does. Waits for the end."""
        options: dict[str, Json] = {"incremental": "false", "parallelism": "parallel"}
        command = self._invoke("repairAsync(java.lang.String,java.util.Map)", [keyspace, options])
        deadline = time.monotonic() + _REPAIR_TIMEOUT_S
        while True:
            status = self._invoke("getParentRepairStatus(int)", [command])
            if isinstance(status, list) and status and status[0] in {"COMPLETED", "FAILED"}:
                break
            if time.monotonic() > deadline:
                raise SandboxError(f"{self.name} did not end its repair within {_REPAIR_TIMEOUT_S:g} s: {status}")
            time.sleep(_REPAIR_LOOK_S)
        if status[0] == "FAILED":
            raise SandboxError(f"{self.name} could not repair {keyspace}: {status}")

    def disallow_read_levels(self, *levels: str) -> None:
        """Set the guardrail `read_consistency_levels_disallowed` (4.1 and later) until the next start.

        It does not apply to superusers.
        """
        guardrail: dict[str, Json] = {"mbean": _GUARDRAILS, "attribute": "ReadConsistencyLevelsDisallowedCSV"}
        self._ask({"type": "write", **guardrail, "value": ",".join(levels)})

    def limit_partition_keys_in_select(self, most: int) -> None:
        """Set the guardrail `partition_keys_in_select_fail_threshold` (4.1 and later) until the next start; -1: no limit.

        It does not apply to superusers.
        """
        arguments: list[Json] = [-1, most]  # no warning
        guardrail: dict[str, Json] = {"mbean": _GUARDRAILS, "operation": "setPartitionKeysInSelectThreshold"}
        self._ask({"type": "exec", **guardrail, "arguments": arguments})

    def live_nodes(self) -> frozenset[str]:
        """The addresses of the nodes that this node considers alive, with its own."""
        live = self._ask({"type": "read", "mbean": _STORAGE_SERVICE, "attribute": "LiveNodes"})
        assert isinstance(live, list)
        return frozenset(str(address) for address in live)

    @property
    def _joins(self) -> bool:
        return self.number > self._options.nodes

    def _configure(self, block: AddressBlock) -> None:
        settings = node_settings(
            self.folder,
            address=self.address,
            seed=block.node(1),
            ports=self.ports,
            token=initial_token(self.number, self._options.nodes),
            options=self._options,
            joins=self._joins,
        )
        centers = self._options.data_centers
        write_configuration(self.folder, settings, centers[self.number - 1] if centers else None)
        agent = {
            "host": self.address,
            "port": self.ports.jolokia,
            "user": _JOLOKIA_USER,
            "password": self._jolokia_password,  # JMX can run code; other users of this machine must not
            "discoveryEnabled": "false",
        }
        self._jolokia_properties.touch(mode=0o600)
        self._jolokia_properties.write_text("".join(f"{name}={value}\n" for name, value in agent.items()))

    @property
    def _jolokia_properties(self) -> Path:
        return self.folder / "conf" / "jolokia.properties"

    def _launch(self) -> Launch:
        jars = cassandra_class_path(self._options.cassandra)
        (jolokia,) = ensure("jolokia")
        (jamm,) = (jar for jar in jars if jar.name.startswith("jamm-"))
        argv = [
            str(java_home() / "bin" / "java"),
            *jvm_options(self.folder, heap_mb=self._options.cassandra_heap_mb, jamm=jamm, joins=self._joins),
            f"-javaagent:{jolokia}=config={self._jolokia_properties}",
            *self._options.cassandra_jvm_options,
            *([_PAST_HALF_TABLES] if self._has_half_a_table() else []),
            "-cp",
            ":".join(map(str, [self.folder / "conf", *jars])),  # conf holds cassandra-rackdc.properties
            "org.apache.cassandra.service.CassandraDaemon",
        ]
        return Launch(argv=argv, env=server_environment(self._sandbox), cwd=self.folder)

    def _has_half_a_table(self) -> bool:
        """Return True if the log reports a table without columns, and names the option with which the node starts.

        Such a table may be left if the node was killed during a DROP or CREATE TABLE.
        """
        return self.log.exists() and _HALF_A_TABLE in self.log.read_bytes()

    def _why_not_ready(self) -> str | None:
        try:
            options = self._options
            count_rows(
                self.address,
                self.native_port,
                "system.local",
                login=options.cassandra_login,
                tls=options.cassandra_tls,
            )
        except NotServingError as error:
            return str(error)
        return None

    def _invoke(self, operation: str, arguments: list[Json]) -> Json:
        return self._ask({"type": "exec", "mbean": _STORAGE_SERVICE, "operation": operation, "arguments": arguments})

    def _ask(self, request: Mapping[str, Json]) -> Json:
        """Send one request to JMX through its HTTP bridge."""
        try:
            answer = rest().post(
                f"http://{self.address}:{self.ports.jolokia}/jolokia/",
                json=request,
                auth=(_JOLOKIA_USER, self._jolokia_password),
                timeout=_OPERATION_TIMEOUT_S,
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise SandboxError(f"{self.name} did not answer {_asked(request)} by JMX: {error}") from error
        body = answer.json()
        if body["status"] != httpx.codes.OK:
            raise SandboxError(f"{self.name} refused {_asked(request)}: {body.get('error')}")
        value: Json = body.get("value")
        return value


def _asked(request: Mapping[str, Json]) -> str:
    return str(request.get("operation") or request.get("attribute"))
