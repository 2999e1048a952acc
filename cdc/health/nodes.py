"""The state of the agents, and Cassandra's nodes that have no agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from cdc.health.agent_status import AgentStatus, NoStatusError
from cdc.health.findings import Finding, failure, warning
from cdc.health.line_config import LineConfig
from cdc.health.local_agents import LocalAgent, local_agents, shared_nodes, unknown_agents
from cdc.health.pulsar_service import NotThereError, PulsarService
from change_agent.configuration.config import AgentConfig
from change_agent.schema.node_connection import Node, NodeConnection
from schemas.errors import ConfigError
from schemas.topics import full_topic_name

__all__ = ["agents", "nodes_of", "nodes_without_agent"]

_HINT: Final = "start `cdc agent` beside it; one with createTopics: false has to be named under agents in line.yaml"


def agents(config: LineConfig, now_s: float) -> tuple[list[Finding], list[AgentStatus]]:
    """Findings about the configured agents, and their statuses.

    Agents on this machine that run for the same node, or cannot be asked, are reported, too.
    """
    with ThreadPoolExecutor(8) as pool:
        here = pool.submit(local_agents)
        looked = list(pool.map(_status, config.agents))
    findings: list[Finding] = []
    for place, status in zip(config.agents, looked, strict=True):
        if isinstance(status, AgentStatus):
            findings += status.findings(now_s)
        else:
            findings.append(_silent(place, status, here.result()))
    findings += shared_nodes(here.result(), config.pulsar_admin_url)
    statuses = [each for each in looked if isinstance(each, AgentStatus)]
    findings += unknown_agents(here.result(), {each.content["pid"] for each in statuses})
    return findings, statuses


def _silent(place: str, problem: str, here: Sequence[LocalAgent]) -> Finding:
    """The finding about an agent without a status: it does not run, or it runs here and has not written one yet."""
    path = Path(place)
    with suppress(ConfigError, OSError):
        folder = (AgentConfig.working_dir_of(path) if path.is_file() else path).resolve()
        running = next((each for each in here if each.working_dir == folder), None)
        if running is not None:
            text = f"process {running.pid} runs and has written no status: it starts, or waits for another agent of its node"
            return warning(place, text, "see its log")
    return failure(place, problem, "start it, or correct agents in line.yaml")


def _status(place: str) -> AgentStatus | str:
    try:
        if place.startswith(("http://", "https://")):
            return AgentStatus.of_url(place)
        path = Path(place)
        return AgentStatus.of_folder(AgentConfig.working_dir_of(path) if path.is_file() else path)
    except (NoStatusError, ConfigError, OSError) as error:
        return str(error)


def nodes_of(config: LineConfig) -> list[Node]:
    """All nodes of the cluster, as the first contact point that answers knows them. Raises NodeUnavailableError."""
    connection = NodeConnection.of(config)
    try:
        return connection.nodes()
    finally:
        connection.close()


def nodes_without_agent(
    service: PulsarService, config: LineConfig, nodes: Sequence[Node], statuses: Sequence[AgentStatus]
) -> Iterator[Finding]:
    """A finding for each node whose changes nobody publishes. Raises PulsarServiceError.

    No status is of an agent of this node, and the broker has no producer on the topic of its agent.
    """
    named = {each.node_id for each in statuses}
    for node in nodes:
        if str(node.host_id) in named:
            continue  # has a finding already, whether its agent runs or not
        try:
            topic = full_topic_name(f"{config.topic_prefix}agent-{node.host_id}")
            is_there = bool(service.stats(topic).get("publishers"))
        except NotThereError:
            is_there = False
        if not is_there:
            text = f"no agent publishes the changes of this node (host id {node.host_id})"
            yield failure(f"node {node.address}", text, _HINT)
