"""The state of Cassandra's nodes and of their agents."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.health.agent_status import AS_ITS_USER, AgentStatus, NoStatusError
from cdc.health.findings import Finding, Section, failure, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.local_agents import LocalAgent, local_agents, shared_nodes, unknown_agents, without_status
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.unanswered import Unanswered, remedy_of_topic
from change_agent.configuration.config import AgentConfig
from change_agent.schema.node_connection import CHECK_LOGIN, Node, NodeConnection, NodeUnavailableError
from schemas.errors import ConfigError
from schemas.topics import full_topic_name

__all__ = ["Cluster", "agents", "agents_section", "cluster_of", "unavailable"]

_HINT: Final = (
    "start `cdc agent` on its machine; if it runs with createTopics: false, name it under agents in line.yaml"
)
_CONNECT_S: Final = 2.0
# Nodes and agents that are asked for at the same time.
_TOGETHER: Final = 8
_MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes of a cluster. `refused`: nodes where nothing listens; `silent`: nodes that this machine does not reach.

    `tables`: all tables as `keyspace.table`, with their option `cdc`. `problem`: why no node is known.
    """

    port: int
    nodes: Sequence[Node] = ()
    refused: Sequence[Node] = ()
    silent: Sequence[Node] = ()
    tables: Mapping[str, bool] = field(default_factory=dict)
    problem: str = ""

    def finding(self, statuses: Sequence[AgentStatus], now_s: float) -> Finding:
        """The state of the nodes. `statuses`: those of the agents, which may report that their node is down."""
        if self.problem:
            text, remedy = unavailable(self.problem)
            return failure("Cassandra", text, f"{remedy} in line.yaml")
        versions = ", ".join(sorted({node.version for node in self.nodes}))
        parts = [f"{len(self.nodes)} node{'' if len(self.nodes) == 1 else 's'}, {versions}"]
        if self.refused:
            parts.append(
                f"{len(self.refused)} of them down (nothing listens on port {self.port}): {_addresses(self.refused)}"
            )
        if self.silent:
            parts.append(f"{len(self.silent)} of them not reached from here: {_addresses(self.silent)}")
        text = "; ".join(parts)
        reported = {each.node_id for each in statuses if each.is_current(now_s) and each.content["cassandra_problem"]}
        if any(str(node.host_id) not in reported for node in self.refused):
            return failure("Cassandra", text, "start Cassandra there, or see its log")
        if self.refused:
            return warning("Cassandra", text, "see the agents of these nodes below")
        if self.silent:
            remedy = "`nodetool status` says whether they are up; this machine may not be allowed to connect to them"
            return warning("Cassandra", text, remedy)
        return ok("Cassandra", text)


def unavailable(problem: str) -> tuple[str, str]:
    """The text and the remedy about a node that cannot be asked. `problem`: the text of its NodeUnavailableError."""
    if problem.endswith(CHECK_LOGIN):
        return f"refuses the login: {problem.removesuffix(CHECK_LOGIN)}", "correct username and password"
    return f"does not answer: {problem}", "start it, or correct contactPoints, port and credentials"


def _addresses(nodes: Sequence[Node]) -> str:
    shown = ", ".join(each.address for each in nodes[:_MOST_SHOWN])
    return f"{shown} and {len(nodes) - _MOST_SHOWN} more" if len(nodes) > _MOST_SHOWN else shown


def cluster_of(config: LineConfig) -> Cluster:
    """The nodes of the cluster, and those of them that take no connection."""
    connection = NodeConnection.of(config)
    try:
        nodes, tables = connection.nodes(), connection.captured_tables()
    except NodeUnavailableError as error:
        return Cluster(port=config.port, problem=str(error))
    finally:
        connection.close()
    others = nodes[1:]  # the first one has answered
    with ThreadPoolExecutor(16) as pool:
        errors = list(pool.map(lambda node: _connect_error(node.address, config.port), others))
    missing = [(node, error) for node, error in zip(others, errors, strict=True) if error is not None]
    return Cluster(
        port=config.port,
        nodes=nodes,
        refused=[node for node, error in missing if isinstance(error, ConnectionRefusedError)],
        silent=[node for node, error in missing if not isinstance(error, ConnectionRefusedError)],
        tables=tables,
    )


def _connect_error(address: str, port: int) -> OSError | None:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return error
    return None


def agents(config: LineConfig, now_s: float) -> tuple[list[Finding], list[AgentStatus]]:
    """Findings about the configured agents, and their statuses.

    Agents on this machine that run for the same node, or cannot be asked, are reported, too.
    """
    with ThreadPoolExecutor(_TOGETHER) as pool:
        here = pool.submit(local_agents)
        looked = list(pool.map(_status, config.agents))
    findings: list[Finding] = []
    for place, status in zip(config.agents, looked, strict=True):
        if isinstance(status, AgentStatus) and (status.is_current(now_s) or status.process_exists):
            findings += status.findings(now_s)
        else:
            findings += _silent(place, status, here.result(), now_s)
    findings += shared_nodes(here.result(), config.pulsar_admin_url)
    statuses = [each for each in looked if isinstance(each, AgentStatus)]
    findings += unknown_agents(here.result(), {each.content["pid"] for each in statuses})
    return findings, statuses


def _silent(
    place: str, status: AgentStatus | NoStatusError, here: Sequence[LocalAgent], now_s: float
) -> Iterator[Finding]:
    """The findings about an agent without a current status: it runs here and has not written one yet, or does not run.

    `status`: that of its last process, or why there is none.
    """
    path, text = Path(place), None
    with suppress(ConfigError, OSError):
        text = without_status(AgentConfig.working_dir_of(path) if path.is_file() else path, here)
    if text is not None:
        yield warning(place, text, "see its log")
    elif isinstance(status, AgentStatus):
        yield from status.findings(now_s)
    else:
        yield failure(place, status.text, status.remedy)


def _status(place: str) -> AgentStatus | NoStatusError:
    try:
        if place.startswith(("http://", "https://")):
            return AgentStatus.of_url(place)
        path = Path(place)
        return AgentStatus.of_folder(AgentConfig.working_dir_of(path) if path.is_file() else path)
    except NoStatusError as error:
        return error
    except ConfigError as error:
        return NoStatusError(str(error), "correct it, or agents in line.yaml")
    except OSError as error:
        return NoStatusError(str(error), AS_ITS_USER)


def agents_section(
    service: PulsarService | None,
    config: LineConfig,
    cluster: Cluster,
    found: Sequence[Finding],
    statuses: Sequence[AgentStatus],
) -> Section:
    """The agents: those that were `found`, and each node whose changes nobody publishes.

    `service` is None while Pulsar does not answer: it is then not known whether a node without a status has an agent.
    """
    findings = list(found)
    if service is not None:
        findings += _uncovered(service, config, cluster.nodes, statuses)
    none = warning("", "none is known", "start cdc agent, or name it under agents in line.yaml")
    return Section(title="agents", findings=findings or [none])


def _uncovered(
    service: PulsarService, config: LineConfig, nodes: Sequence[Node], statuses: Sequence[AgentStatus]
) -> Iterator[Finding]:
    """A finding for each node without an agent, or of which Pulsar does not say whether it has one.

    No status is of an agent of this node, and the broker has no producer on the topic of its agent.
    """
    named = {each.node_id for each in statuses}  # these have a finding already, whether the agent runs or not
    unnamed = [node for node in nodes if str(node.host_id) not in named]
    silent = Unanswered()
    with ThreadPoolExecutor(_TOGETHER) as pool:
        for found in pool.map(lambda node: [*_without_agent(service, config, node, silent)], unnamed):
            yield from found
    yield from silent.not_asked()


def _without_agent(service: PulsarService, config: LineConfig, node: Node, silent: Unanswered) -> Iterator[Finding]:
    """The finding about one node, as `_uncovered`; none if it has an agent. `silent`: the requests without an answer."""
    subject, topic = f"node {node.address}", full_topic_name(f"{config.topic_prefix}agent-{node.host_id}")
    if silent.skips(subject):
        return
    try:
        is_there = bool(service.stats(topic).get("publishers"))
    except NotThereError:
        is_there = False
    except PulsarServiceError as error:
        silent.add(subject, topic, error)
        text = f"whether an agent publishes its changes is not known: {error}"
        yield warning(subject, text, remedy_of_topic(topic, error))
        return
    if not is_there:
        text = f"no agent publishes the changes of this node (host id {node.host_id})"
        yield failure(subject, text, _HINT)
