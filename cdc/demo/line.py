"""The whole pipeline on a sandbox: servers, an agent, and a source for a keyspace, deployed as a user would do it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import httpx
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import dict_factory

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.sandbox import Progress
from clients.driver_errors import DRIVER_ERRORS
from clients.node_errors import node_errors, one_line
from runtime.short_java import short_java
from schemas.errors import CdcError
from schemas.topics import events_topic, full_topic_name
from source_connector.nar_build import build_nar

__all__ = ["Line", "LineError", "as_line_errors", "connect"]

_ADMIN_TIMEOUT_S: Final = 120
_LOOK_S: Final = 0.1
_HEALTH_LOOK_S: Final = 10.0
_SUBSCRIPTION: Final = "sub"
_TROUBLE: Final = re.compile(r" (WARN|ERROR|FATAL) |Exception|Error:")
_SHOWN_LINES: Final = 10
_SHOWN_CHARACTERS: Final = 400
_REMEDY: Final = "run the demo again, when the machine has less to do"


class LineError(CdcError):
    """A part of the pipeline failed, or did not do its work in time."""


@contextmanager
def as_line_errors() -> Iterator[None]:
    """A context that raises LineError for the errors of clients, and for a program that does not end in time."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        program = Path(error.cmd[0]).name
        raise LineError(f"{program} did not end within {error.timeout:.0f} s; {_REMEDY}") from error
    except httpx.HTTPStatusError as error:
        answer = f"{error.response.status_code} {one_line(Exception(error.response.text))[:_SHOWN_CHARACTERS]}"
        raise LineError(f"Pulsar answered {error.request.method} {error.request.url} by {answer}; {_REMEDY}") from error
    except httpx.RequestError as error:
        request = f"{error.request.method} {error.request.url}"
        raise LineError(f"Pulsar did not answer {request}: {one_line(error)}; {_REMEDY}") from error
    except DRIVER_ERRORS as error:
        cause = node_errors(error, NoHostAvailable)[0]
        raise LineError(f"Cassandra did not do a request: {one_line(cause)}; {_REMEDY}") from error


class Line:
    """The servers and the agent, which run during a ``with`` block. Nothing is left afterwards.

    `agent_options`: options for agent.yaml, which replace the ones that follow from the servers.
    """

    def __init__(
        self, options: SandboxOptions, *, on_progress: Progress, agent_options: Mapping[str, object] | None = None
    ) -> None:
        self._options = options
        self._agent_options: Final = agent_options or {}
        self._on_progress = on_progress
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as exit_on_error, ThreadPoolExecutor(1) as pool:
            archive = pool.submit(self._build)
            self.sandbox = exit_on_error.enter_context(Sandbox(self._options, on_progress=self._on_progress))
            self.session = exit_on_error.enter_context(
                connect(self.sandbox.node.address, self.sandbox.node.native_port)
            )
            self.agent = self._start_agent()
            exit_on_error.callback(self.agent.stop)
            self._archive = archive.result()
            self._exit = exit_on_error.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._exit.close()

    @property
    def work_dir(self) -> Path:
        """A folder that is removed after the ``with`` block."""
        return self.sandbox.dir

    def keep_data_topics(self) -> None:
        """Do `pulsar-admin namespaces set-retention public/default --size -1 --time -1`.

        By default a namespace deletes messages that no subscription holds, before Spark reads them.
        """
        response = rest().post(
            f"{self.sandbox.pulsar.admin_url}/admin/v2/namespaces/public/default/retention",
            json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            timeout=_ADMIN_TIMEOUT_S,
        )
        response.raise_for_status()

    def deploy_source(self, keyspace: str, tables: Sequence[str]) -> None:
        """Do `pulsar-admin sources create` for one source of these tables. Raises LineError with its output."""
        node, pulsar = self.sandbox.node, self.sandbox.pulsar
        config = {
            "contactPoints": node.address,
            "port": node.native_port,
            "loadBalancing.localDc": "datacenter1",
            "tables": ",".join(f"{keyspace}.{table}" for table in tables),
            "python": sys.executable,
        }
        name = _source_name(keyspace)
        self._on_progress(name, "starting")
        # Pulsar requires a destination, which is not used: each table has its own topic.
        destination = ["--destination-topic-name", f"data-{keyspace}"]
        create = [str(pulsar.pulsar_admin), "sources", "create", "--archive", str(self._archive), "--name", name]
        done = subprocess.run(
            [*create, *destination, "--source-config", json.dumps(config)],
            env={**short_java("PULSAR_EXTRA_OPTS"), "JAVA_HOME": str(java_home())},
            capture_output=True,
            text=True,
            timeout=_ADMIN_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise LineError(f"pulsar-admin sources create {name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        self._on_progress(name, "ready")

    def wait_for_events(self, count: int, timeout_s: float) -> None:
        """Wait until the broker has acknowledged this many events. Raises LineError with the end of the agent's log."""
        self._wait(
            lambda: self.agent.metric("events_acknowledged") >= count,
            lambda: (
                f"the agent published {self.agent.metric('events_acknowledged'):,} of {count:,} events within "
                f"{timeout_s:g} s; the end of its log:\n{self.agent.log_tail()}"
            ),
            timeout_s,
        )

    def wait_for_records(self, keyspace: str, tables: Sequence[str], timeout_s: float) -> None:
        """Wait until the source has acknowledged all events. Raises LineError with the errors in its log."""
        topics = [events_topic(keyspace, table) for table in tables]
        look_at = time.monotonic() + _HEALTH_LOOK_S

        def is_done() -> bool:
            nonlocal look_at
            if time.monotonic() > look_at:
                self._restart_if_it_cannot_start(_source_name(keyspace))
                look_at = time.monotonic() + _HEALTH_LOOK_S
            return sum(map(self._backlog, topics)) == 0

        self._wait(
            is_done,
            lambda: (
                f"{sum(map(self._backlog, topics)):,} messages of events wait for the source after "
                f"{timeout_s:g} s; the end of its log:\n{self._source_logs()}"
            ),
            timeout_s,
        )

    def data_topic(self, keyspace: str, table: str) -> str:
        """Full name of a table's data topic."""
        return full_topic_name(f"data-{keyspace}.{table}")

    def _build(self) -> Path:
        self._on_progress("connector archive", "starting")
        archive = build_nar(Path.cwd() / "build")
        self._on_progress("connector archive", "ready")
        return archive

    def _start_agent(self) -> AgentProcess:
        self._on_progress("agent", "starting")
        agent = AgentProcess.for_node(
            self.sandbox.node, self.sandbox.pulsar, self.sandbox.dir / "agent", **self._agent_options
        )
        agent.start()
        self._on_progress("agent", "ready")
        return agent

    def _restart_if_it_cannot_start(self, name: str) -> None:
        """Do `pulsar-admin sources restart` if an instance ended and cannot start again.

        The functions worker chooses a port for each process when the source is created. It starts an ended process
        again and again with the same port, even if another connection has taken this port. A restart of the source
        chooses another port.
        """
        url = f"{self.sandbox.pulsar.admin_url}/admin/v3/sources/public/default/{name}"
        response = rest().get(f"{url}/status", timeout=_ADMIN_TIMEOUT_S).raise_for_status()
        for instance in response.json()["instances"]:
            status = instance["status"]
            if status["numRestarts"] and not status["running"]:
                self._on_progress(f"{name}: restarted, because its instance could not start", "ready")
                rest().post(f"{url}/restart", timeout=_ADMIN_TIMEOUT_S).raise_for_status()

    def _backlog(self, topic: str) -> int:
        path = topic.replace("://", "/", 1)
        response = rest().get(
            f"{self.sandbox.pulsar.admin_url}/admin/v2/{path}/partitioned-stats", timeout=_ADMIN_TIMEOUT_S
        )
        response.raise_for_status()
        return int(response.json()["subscriptions"][_SUBSCRIPTION]["msgBacklog"])

    def _source_logs(self) -> str:
        """The errors in the source's logs. The logs are copied to a folder that stays, for inspection."""
        kept = Path.cwd() / "build" / "demo-logs"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.sandbox.pulsar.functions_log_dir, kept)
        lines = [f"all of them are in {kept}"]
        for log in sorted(kept.rglob("*.log")):
            troubles = [line for line in log.read_text(errors="replace").splitlines() if _TROUBLE.search(line)]
            lines += [f"{log.name}:", *(line[:_SHOWN_CHARACTERS] for line in troubles[-_SHOWN_LINES:])]
        return "\n".join(lines)

    @staticmethod
    def _wait(done: Callable[[], bool], reason: Callable[[], str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise LineError(reason())
            time.sleep(_LOOK_S)


def _source_name(keyspace: str) -> str:
    return f"cassandra-{keyspace}"


@contextmanager
def connect(address: str, port: int) -> Iterator[Session]:
    """A driver session with one node, rows as dictionaries."""
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]), row_factory=dict_factory, request_timeout=60
    )
    with Cluster(
        [address],
        port=port,
        connect_timeout=60,
        control_connection_timeout=60,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    ) as cluster:
        yield cluster.connect()
