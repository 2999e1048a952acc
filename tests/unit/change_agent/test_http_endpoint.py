"""`/metrics`, `/healthz` and `/readyz`, over real HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.publishing.topic_status import TopicStatus
from change_agent.reporting.http_endpoint import HttpEndpoint
from change_agent.reporting.prometheus import CONTENT_TYPE, MetricsPage
from change_agent.reporting.status_report import StatusReport
from schemas.errors import ConfigError


@dataclass
class _Node:
    node_id: UUID | None = None
    problem: str | None = None
    refreshes: int = 0


def _topic(*, is_usable: bool = True, problem: str | None = None) -> TopicStatus:
    return TopicStatus(
        topic="events-ks.t",
        partitions=4,
        is_usable=is_usable,
        waiting_events=3,
        held_bytes=7,
        too_large_bytes=0,
        problem=problem,
        problem_since_s=None,
        attempts=1,
    )


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A function that serves these answers and returns the URL."""
    started = []

    def serve(**answers: object) -> str:
        endpoint = HttpEndpoint("127.0.0.1", 0, {f"/{path}": answer for path, answer in answers.items()})  # type: ignore[misc]
        endpoint.start()
        started.append(endpoint)
        return f"http://{endpoint.address}"

    yield serve
    for each in started:
        each.stop()


def _metrics(serve: Callable[..., str], metrics: AgentMetrics, topics: Mapping[str, TopicStatus]) -> dict[str, float]:
    page = MetricsPage(metrics, lambda: topics)
    answer = httpx.get(serve(metrics=lambda: (True, page.render(), CONTENT_TYPE)) + "/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_every_number(serve: Callable[..., str]) -> None:
    """Counters of the agent, counters and the histogram of each table, and states of the topics."""
    metrics = AgentMetrics(events_acknowledged=5, lag_bytes=17)
    table = metrics.table("ks.t")
    table.events_acknowledged = 5
    table.observe_delay(0.06, 4)
    table.observe_delay(7_200.0, 1)
    found = _metrics(serve, metrics, {"ks.t": _topic(is_usable=False)})
    assert found["cdc_agent_events_acknowledged_total"] == 5
    assert found["cdc_agent_lag_bytes"] == 17
    assert found["cdc_agent_table_events_acknowledged_total{table=ks.t}"] == 5
    assert found["cdc_agent_write_to_publish_seconds_bucket{le=0.05}{table=ks.t}"] == 0
    assert found["cdc_agent_write_to_publish_seconds_bucket{le=0.1}{table=ks.t}"] == 4
    assert found["cdc_agent_write_to_publish_seconds_bucket{le=+Inf}{table=ks.t}"] == 5
    assert found["cdc_agent_write_to_publish_seconds_count{table=ks.t}"] == 5
    assert found["cdc_agent_topic_usable{table=ks.t}"] == 0
    assert found["cdc_agent_topic_waiting_events{table=ks.t}"] == 3


def test_every_number_of_the_agent_has_a_text() -> None:
    """A number without a help text would be missing on the page. `damage` and `tables` appear with labels."""
    assert [each.name for each in fields(AgentMetrics) if "help" not in each.metadata] == ["damage", "tables", "_lock"]


def test_failed_writes_of_several_threads_are_all_counted() -> None:
    """The reader, the publisher and the writer of positions all write to the working directory."""
    metrics = AgentMetrics()

    def fail() -> None:
        for _ in range(5_000):
            metrics.count_write_failure()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(fail)
    assert metrics.as_dict()["write_failures"] == 20_000
    assert abs(metrics.as_dict()["last_write_failure_timestamp_seconds"] - time.time()) < 60


def test_reads_of_the_schema_are_counted(tmp_path: Path) -> None:
    """The status file contains the number."""
    report = _report(_Node(node_id=UUID(int=1), refreshes=3), tmp_path, {}, {})
    report.refresh()
    assert json.loads((tmp_path / "status.json").read_text())["metrics"]["schema_refreshes"] == 3


def test_the_status_has_a_line_for_each_of_its_parts(tmp_path: Path) -> None:
    """It is encoded each second. With a line for each value, that took ten times as long."""
    report = _report(_Node(node_id=UUID(int=1)), tmp_path, {}, {})
    report.refresh()
    text = (tmp_path / "status.json").read_text()
    first, *lines, last = text.splitlines()
    parts = json.loads(text)
    assert (first, last, len(lines)) == ("{", "}", len(parts))
    assert [json.loads(f"{{{line.removesuffix(',')}}}") for line in lines] == [{name: parts[name]} for name in parts]


def test_the_status_names_a_node_that_never_answered_by_its_contact_points(tmp_path: Path) -> None:
    """Its host id is not known."""
    report = _report(_Node(), tmp_path, {}, {})
    report.refresh()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["node_id"], status["contact_points"]) == (None, ["10.0.0.1", "10.0.0.2"])


@pytest.fixture
def node() -> _Node:
    """A node that answers."""
    return _Node(node_id=UUID(int=1))


def _report(node: _Node, path: Path, topics: Mapping[str, TopicStatus], limits: Mapping[int, int]) -> StatusReport:
    positions = InflightPositions(max_events=10, max_bytes=1000)
    positions.open(1, 0)
    return StatusReport(
        AgentMetrics(),
        positions,
        node,
        limits=lambda: limits,
        topics=lambda: topics,
        path=path / "status.json",
        service_url="pulsar://127.0.0.1:1",
        contact_points=("10.0.0.1", "10.0.0.2"),
    )


def test_readiness_is_red_while_a_server_is_away(serve: Callable[..., str], node: _Node, tmp_path: Path) -> None:
    """Readiness fails without Cassandra, or if no topic can be used. One refused topic is not enough."""
    topics: dict[str, TopicStatus] = {}
    report = _report(node, tmp_path, topics, {})
    url = serve(readyz=report.readiness) + "/readyz"
    answer = httpx.get(url)
    assert (answer.status_code, answer.json()["problems"]) == (503, ["pulsar: pulsar://127.0.0.1:1 does not answer"])
    topics["ks.a"] = _topic(is_usable=False, problem="ConnectError")
    assert httpx.get(url).json()["problems"] == ["pulsar: events-ks.t: ConnectError"]
    topics["ks.b"] = _topic()
    assert httpx.get(url).status_code == 200
    node.problem = "Cassandra at 10.0.0.1 port 9042: away"
    answer = httpx.get(url)
    assert (answer.status_code, answer.json()["problems"]) == (
        503,
        ["cassandra: Cassandra at 10.0.0.1 port 9042: away"],
    )


def test_health_is_red_when_the_log_moves_and_the_position_does_not(
    serve: Callable[..., str], node: _Node, tmp_path: Path
) -> None:
    """All threads may be alive. Health depends on the progress of the work."""
    limits = {1: 0}
    report = _report(node, tmp_path, {}, limits)
    report.unhealthy_after_s = 0.0
    url = serve(healthz=report.health) + "/healthz"
    report.refresh()
    report.unhealthy_after_s = 0.001
    assert httpx.get(url).json() == {"status": "ok", "problems": []}
    limits[1] = 100
    report.refresh()
    report.refresh()
    answer = httpx.get(url)
    assert answer.status_code == 503
    assert "the position did not" in answer.json()["problems"][0]
    assert json.loads((tmp_path / "status.json").read_text())["progress"]["lag_bytes"] == 100


def test_it_listens_on_the_address_that_it_is_given_only(serve: Callable[..., str]) -> None:
    """The address is 127.0.0.1, so another address of this machine does not answer."""
    port = int(serve(healthz=lambda: (True, b"", "text/plain")).rpartition(":")[2])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 5)


def test_a_port_that_is_taken_is_told_by_its_option(serve: Callable[..., str]) -> None:
    """One line names the option and says what to do."""
    port = int(serve(healthz=lambda: (True, b"", "text/plain")).rpartition(":")[2])
    with pytest.raises(ConfigError, match=r"httpPort: 127\.0\.0\.1:.* cannot be listened on") as raised:
        HttpEndpoint("127.0.0.1", port, {})
    assert "\n" not in str(raised.value)


def test_an_unknown_path_names_those_that_there_are(serve: Callable[..., str]) -> None:
    """The answer is 404, with the list of paths."""
    answer = httpx.get(serve(healthz=lambda: (True, b"", "text/plain")) + "/other")
    assert (answer.status_code, answer.text) == (404, "/healthz\n")


def test_readiness_is_red_by_option_while_pulsar_would_drop_unread_events(node: _Node, tmp_path: Path) -> None:
    """The answer names the hazard and its remedy.

    Without the option, only the status and the metrics show the hazard.
    """
    hazard = "the message TTL drops events that were not read for 60 s; fix it with ..."
    topics = {"ks.t": replace(_topic(), hazards=(hazard,))}
    assert _report(node, tmp_path, topics, {}).readiness()[0]
    positions = InflightPositions(max_events=10, max_bytes=1000)
    strict = StatusReport(
        AgentMetrics(),
        positions,
        node,
        limits=dict,
        topics=lambda: topics,
        path=tmp_path / "status.json",
        service_url="pulsar://127.0.0.1:1",
        contact_points=("10.0.0.1", "10.0.0.2"),
        requires_safe_policies=True,
    )
    is_ready, body, _ = strict.readiness()
    assert not is_ready
    assert json.loads(body)["problems"] == [f"pulsar: events-ks.t: {hazard}"]
