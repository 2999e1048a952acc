"""The parts that a run breaks: servers, an agent of each node, a connector of all tables, and proxies between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import psutil

from cdc.agent_process import AgentProcess
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper
from cdc.health.turns import Turns
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from cdc.sandbox.sandbox import Progress
from source_connector.nar_build import build_nar
from tests.fault_kit.clock import SteppedClock
from tests.fault_kit.commitlog import CommitLogEncoding, commitlog_settings
from tests.fault_kit.contact import CONNECTOR_LOGIN, Contact
from tests.fault_kit.disks import folder_on_another_disk
from tests.fault_kit.errors import FaultRunError
from tests.fault_kit.oracle.topics import Event
from tests.fault_kit.proxy import Proxy
from tests.fault_kit.tables import KEYSPACE, PARTITIONED, RECREATED

__all__ = ["FaultLine", "wait_for"]

_SOURCE: Final = "faults"
_ADMIN_TIMEOUT_S: Final = 240
_AGENT_START_S: Final = 600.0
_WATCH_S: Final = 2.0
# The default of `cdc connector watch`. On a busy machine a start takes up to a minute.
_WATCH_PATIENCE_S: Final = 90.0
_LOOK_S: Final = 0.1
_TOPICS_CHECK_MS: Final = 1_000
_DEFAULT_SYNC_MS: Final = 10_000
_USER_METRIC: Final = "pulsar_source_user_metric_"
# Pulsar's default is 30 s. An instance ends itself if it gets no health check for three times this interval. The first
# health check comes late if an instance starts slowly: on a busy machine after half a minute.
_SHORT_LIVENESS_MS: Final = 10_000
# Each connection checks a password. With Cassandra's default this takes a tenth of a second.
_CHEAP_PASSWORDS: Final = ("-Dcassandra.auth_bcrypt_gensalt_log2_rounds=4",)
# Last parts of addresses in the sandbox's block. They have three digits, as Pulsar's own has, because the proxy
# replaces one address with the other.
_PULSAR_FOR_AGENTS: Final = 101
_PULSAR_FOR_CONNECTOR: Final = 102
_CASSANDRA_FOR_AGENTS: Final = 110
_CASSANDRA_FOR_CONNECTOR: Final = 180


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait until the condition holds. Raises FaultRunError with the text `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise FaultRunError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_LOOK_S)


class FaultLine:
    """Use in a `with` block. Agents do not run at first."""

    def __init__(
        self,
        *,
        nodes: int,
        cassandra: str,
        folder: Path,
        on_progress: Progress,
        commitlog: CommitLogEncoding = CommitLogEncoding.PLAIN,
        instances: int = 1,
        asks_for_passwords: bool = False,
        is_unsynced: bool = False,
    ) -> None:
        """`instances`: how many instances of the connector share the partitions of all tables (`parallelism`).
        `asks_for_passwords`: nodes ask for passwords; agents and connector log in as CONNECTOR_LOGIN, whose role the
        caller has to create. `is_unsynced`: nodes sync by Cassandra's default, and agents read before the sync
        (readUnsynced)."""
        self.is_unsynced: Final = is_unsynced
        self.asks_for_passwords: Final = asks_for_passwords
        self.folder: Final = folder
        self.instances: Final = instances
        self._commitlog: Final = commitlog
        self._options = SandboxOptions(
            cassandra=cassandra,
            nodes=nodes,
            # Synced by batch: otherwise Cassandra loses acknowledged writes at kill -9, which readers may have seen.
            cassandra_settings={} if is_unsynced else commitlog_settings(commitlog, folder),
            commitlog_sync_ms=_DEFAULT_SYNC_MS if is_unsynced else SandboxOptions().commitlog_sync_ms,
            cassandra_passwords=asks_for_passwords,
            cassandra_jvm_options=_CHEAP_PASSWORDS if asks_for_passwords else (),
            functions_worker_settings={"instanceLivenessCheckFreqMs": _SHORT_LIVENESS_MS},
        )
        self._on_progress = on_progress
        self._exit = ExitStack()
        self._watch_stop = threading.Event()
        self.source_restarts = 0
        self.deleted: Final[dict[str, list[Event]]] = {}
        """By table: the events that its events topics had when they were deleted."""
        self.spill: Path | None = None
        """The folder of all agents' spill folders, on another disk than `cdc_raw`; None if there is no other disk."""
        self.pulsar_lock: Final = threading.Lock()
        """Hold it to stop or start Pulsar."""

    def __enter__(self) -> Self:
        with ExitStack() as exit_on_error:
            archive = build_nar(Path.cwd() / "build")
            self.clock = SteppedClock(self.folder / "clock")
            self.spill = folder_on_another_disk(self.folder)
            exit_on_error.callback(self._keep_spilled)
            self.sandbox = exit_on_error.enter_context(
                Sandbox(self._options, base_dir=self.folder / "sandbox", on_progress=self._on_progress)
            )
            self.proxies = self._open_proxies(exit_on_error)
            self.agents = [self._agent(node) for node in self.sandbox.nodes]
            for agent in self.agents:
                exit_on_error.callback(agent.kill)
            self._archive = archive
            self._exit = exit_on_error.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._watch_stop.set()
        self._exit.close()

    @property
    def contact(self) -> Contact:
        """The nodes' addresses and the superuser's login, for clients that do not use the proxies."""
        return Contact(
            addresses=[node.address for node in self.sandbox.nodes],
            port=self.sandbox.node.native_port,
            login=DEFAULT_LOGIN if self.asks_for_passwords else None,
        )

    def _open_proxies(self, exit_stack: ExitStack) -> dict[str, list[Proxy]]:
        pulsar = self.sandbox.pulsar
        prefix = pulsar.address.rpartition(".")[0]

        def to_pulsar(host: int) -> Proxy:
            address = f"{prefix}.{host}"
            texts = tuple(f"pulsar://{each}:{pulsar.ports.broker}".encode() for each in (pulsar.address, address))
            broker = (pulsar.address, pulsar.ports.broker)
            return exit_stack.enter_context(Proxy((address, broker[1]), broker, (texts[0], texts[1])))

        def to_node(node: CassandraNode, first: int) -> Proxy:
            listen = (f"{prefix}.{first + node.number}", node.native_port)
            return exit_stack.enter_context(Proxy(listen, (node.address, node.native_port)))

        return {
            "agent-pulsar": [to_pulsar(_PULSAR_FOR_AGENTS)],
            "connector-pulsar": [to_pulsar(_PULSAR_FOR_CONNECTOR)],
            "agent-cassandra": [to_node(node, _CASSANDRA_FOR_AGENTS) for node in self.sandbox.nodes],
            "connector-cassandra": [to_node(node, _CASSANDRA_FOR_CONNECTOR) for node in self.sandbox.nodes],
        }

    def spill_folder(self, directory: Path) -> Path:
        """The folder to which the agent of this directory off-loads segments of `cdc_raw`."""
        return directory / "work" / "spill" if self.spill is None else self.spill / directory.name

    def _keep_spilled(self) -> None:
        """Copy the files that are left on the other disk to the run's folder, as evidence, and remove them there."""
        if self.spill is not None:
            if any(path.is_file() for path in self.spill.rglob("*")):
                shutil.copytree(self.spill, self.folder / "spill", dirs_exist_ok=True)
            shutil.rmtree(self.spill)

    def _agent(self, node: CassandraNode) -> AgentProcess:
        return self.agent_of(node, self.folder / f"agent-{node.number}")

    def agent_of(self, node: CassandraNode, directory: Path, **options: object) -> AgentProcess:
        """Return an agent of this node that uses the proxies and does not run yet."""
        (to_pulsar,) = self.proxies["agent-pulsar"]
        to_node = self.proxies["agent-cassandra"][node.number - 1]
        if self._commitlog is CommitLogEncoding.ENCRYPTED:
            options["cassandraYaml"] = str(node.cassandra_yaml)
        if self.asks_for_passwords:
            options["cassandraYaml"] = str(node.cassandra_yaml)  # the role may not read the node's settings by CQL
            options["username"], options["password"] = CONNECTOR_LOGIN
        if self.is_unsynced:
            options["readUnsynced"] = True
        agent = AgentProcess.for_node(
            node,
            self.sandbox.pulsar,
            directory,
            contactPoints=to_node.listen[0],
            pulsarServiceUrl=f"pulsar://{to_pulsar.listen[0]}:{to_pulsar.listen[1]}",
            spillDir=str(self.spill_folder(directory)),
            eventsTopicsCheckIntervalMs=_TOPICS_CHECK_MS,
            **options,
        )
        agent.environment = self.clock.environment
        return agent

    def retain_everything(self) -> None:
        """Let topics keep all messages, because the oracle reads them at the end."""
        rest().post(
            f"{self.sandbox.pulsar.admin_url}/admin/v2/namespaces/public/default/retention",
            json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            timeout=_ADMIN_TIMEOUT_S,
        ).raise_for_status()

    def prepare_topics(self) -> None:
        """Call `retain_everything`, create the topics with partitions, and let RECREATED's topic accept any schema.

        RECREATED comes back with columns of other types. Pulsar's default strategy would refuse them, and the table
        would be parked until an operator sets another strategy.
        """
        self.retain_everything()
        topics = f"{self.sandbox.pulsar.admin_url}/admin/v2/persistent/public/default/data-{KEYSPACE}."
        for table in PARTITIONED:
            rest().put(f"{topics}{table}/partitions", json=1, timeout=_ADMIN_TIMEOUT_S).raise_for_status()
        policy = f"{topics}{RECREATED}/schemaCompatibilityStrategy"
        rest().put(policy, json="ALWAYS_COMPATIBLE", timeout=_ADMIN_TIMEOUT_S).raise_for_status()

    def deploy_source(self, more: Mapping[str, object] | None = None) -> None:
        """Create a source for all tables of the keyspace, and start the thread that restarts failed instances.

        `more`: further options of the source. Raises FaultRunError when Pulsar refuses the source.
        """
        contacts = [proxy.listen[0] for proxy in self.proxies["connector-cassandra"]]
        (to_pulsar,) = self.proxies["connector-pulsar"]
        configs: dict[str, object] = {
            "contactPoints": contacts,
            "port": self.sandbox.node.native_port,
            "loadBalancing": {"localDc": "datacenter1"},
            "tables": f"{KEYSPACE}.*",
            "pulsarServiceUrl": f"pulsar://{to_pulsar.listen[0]}:{to_pulsar.listen[1]}",
            "query.maxBackoffInSec": 2,
            "python": str(self.clock.python),
            **(more or {}),
        }
        if self.asks_for_passwords:
            name, password = CONNECTOR_LOGIN
            configs |= {"auth.provider": "PLAIN", "auth.username": name, "auth.password": password}
        config = {
            "tenant": "public",
            "namespace": "default",
            "name": _SOURCE,
            "topicName": _SOURCE,
            "configs": configs,
            "parallelism": self.instances,
        }
        with self._archive.open("rb") as file:
            answer = rest().post(
                self._source_url,
                files={"sourceConfig": (None, json.dumps(config), "application/json"), "data": file},
                timeout=_ADMIN_TIMEOUT_S,
            )
        if not answer.is_success:
            raise FaultRunError(f"the source was refused: {answer.text}")
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def wait_for_agent(self, agent: AgentProcess) -> None:
        """Wait until the agent runs. Raises FaultRunError with the end of its log when it ends by itself."""

        def is_reported() -> bool:
            if not agent.running:
                raise FaultRunError(f"an agent ended by itself:\n{agent.log_tail()}")
            with suppress(FileNotFoundError):
                return bool(agent.status()["pid"] == agent.pid)
            return False

        wait_for(is_reported, f"the agent of {agent.directory} runs", _AGENT_START_S)

    @property
    def _source_url(self) -> str:
        return f"{self.sandbox.pulsar.admin_url}/admin/v3/sources/public/default/{_SOURCE}"

    def _watch(self) -> None:
        """Do the same as `cdc connector watch`: restart a source that Pulsar's functions worker has given up."""
        pulsar = self.sandbox.pulsar
        config = LineConfig.from_mapping({"pulsarServiceUrl": pulsar.service_url, "pulsarAdminUrl": pulsar.admin_url})
        with PulsarService(config, timeout_s=_ADMIN_TIMEOUT_S) as service:
            keeper = SourceKeeper(service, Turns(config).turn, patience_s=_WATCH_PATIENCE_S, stopping=self._watch_stop)
            while not self._watch_stop.wait(_WATCH_S):
                for line in keeper.check():
                    self._on_progress(f"watch: {line}", "ready")
                self.source_restarts = keeper.restarts

    def metric(self, name: str) -> float:
        """A metric of the connector since the start of each instance, summed over the instances. Raises
        httpx.HTTPError."""
        page = rest().get(f"{self.sandbox.pulsar.admin_url}/metrics/", follow_redirects=True, timeout=_ADMIN_TIMEOUT_S)
        found = 0.0
        for line in page.raise_for_status().text.splitlines():
            labels, _, value = line.rpartition("}")
            if line.startswith(_USER_METRIC) and "_sum{" in line and f'metric="{name}"' in labels:
                found += float(value.split()[0])
        return found

    def hosts(self) -> list[psutil.Process]:
        """The connector's running Java hosts, one for each instance, by process id."""
        return self._below_pulsar(lambda command: any("JavaInstanceMain" in each for each in command))

    def children(self) -> list[psutil.Process]:
        """The connector's running Python processes, one for each instance, by process id."""
        return self._below_pulsar(lambda command: "-I" in command and "-c" not in command)

    def _below_pulsar(self, is_wanted: Callable[[list[str]], bool]) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        with suppress(psutil.Error):
            for process in psutil.Process(self.sandbox.pulsar.pid).children(recursive=True):
                with suppress(psutil.Error, IndexError):
                    if is_wanted(process.cmdline()):
                        found.append(process)
        return sorted(found, key=lambda each: each.pid)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process, which may have ended."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)
