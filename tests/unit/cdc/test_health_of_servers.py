"""Findings of `cdc status` and `cdc doctor` for servers that refuse, or whose answers are partial or unexpected."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from cassandra import OperationTimedOut, Unauthorized

from cdc.health.agent_status import AgentStatus, NoStatusError
from cdc.health.data_topics import data_topics
from cdc.health.dead_letter_topics import asked_dead_letter_topics, dead_letter_topics
from cdc.health.doctor import _cassandra, _clock, _functions_worker, _pulsar, _topics, doctor
from cdc.health.findings import Finding, Level, ok
from cdc.health.line_config import LineConfig
from cdc.health.line_status import _broker, line_status
from cdc.health.line_status import _pulsar as _pulsar_of_line
from cdc.health.mirrors import mirror_finding
from cdc.health.nodes import Cluster, agents_section, cluster_of
from cdc.health.pulsar_service import PulsarService, PulsarServiceError
from cdc.health.sources import SourceView, sources_of
from cdc.health.tables import _PolicyChecks, dead_letters, gaps, tables
from cdc.health.topic_policies import as_hazard, asked_once
from cdc.health.unanswered import Unanswered
from change_agent.schema.node_connection import CHECK_LOGIN, Node, NodeConnection
from schemas.errors import ConfigError
from schemas.gap_record import GapRecord, encode_gap
from schemas.topics import RESEND_SUBSCRIPTION
from tests.golden.health_answers import HEALTH, recorded
from tests.servers.pages import Page, page, serving
from tests.topics.gaps import GAP


def _line(url: str, **options: object) -> LineConfig:
    return LineConfig.from_mapping({"pulsarAdminUrl": url, **options})


_WORKER: Final = {
    "/admin/v2/worker/cluster": page([{"workerId": "w"}]),
    "/admin/v2/worker/cluster/leader/ready": page(True),
    "/admin/v3/sources/public/default": page(["shop"]),
    "/admin/v3/sources/public/default/shop": page(recorded("source")),
    "/admin/v3/sources/public/default/shop/status": page(recorded("source-given-up")),
    "/admin/v3/packages/source/public/default": page(["shop", "gone"]),
}
_WORKER_PAGE: Final = "/admin/v2/worker/cluster"
_PACKAGES_PAGE: Final = "/admin/v3/packages/source/public/default"


def _checked(pages: Mapping[str, Page]) -> list[Finding]:
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        return list(_functions_worker(service, config))


def test_the_doctor_reports_workers_sources_and_packages_of_deleted_sources() -> None:
    """A source that is down is a failure. A package of a deleted source is a warning."""
    worker, source, left = _checked(_WORKER)
    assert (worker.level, worker.text) == (Level.OK, "1 worker, ready")
    assert (source.level, source.subject) == (Level.FAILURE, "shop")
    assert (left.level, left.subject) == (Level.WARNING, "gone")
    assert left.remedy.endswith("pulsar-admin packages delete source://public/default/gone@0")


@pytest.mark.parametrize(
    ("status", "level", "remedy"),
    [
        (404, Level.OK, ""),
        (500, Level.OK, ""),
        (503, Level.OK, ""),
        (401, Level.WARNING, "grant-permission --role ROLE --actions packages public/default"),
        (403, Level.WARNING, "grant-permission --role ROLE --actions packages public/default"),
    ],
)
def test_a_broker_that_lists_no_packages_is_no_failure_and_hides_no_source(
    status: int, level: Level, remedy: str
) -> None:
    """Pulsar's default is enablePackagesManagement=false."""
    worker, source, packages = _checked(
        {**_WORKER, _PACKAGES_PAGE: page({"reason": "Package Management Service is not enabled"}, status)}
    )
    assert (worker.level, source.level) == (Level.OK, Level.FAILURE)
    assert (packages.level, packages.subject) == (level, "packages")
    assert "Package Management Service is not enabled" in packages.text
    assert packages.remedy.endswith(remedy)


@pytest.mark.parametrize("status", [401, 403])
def test_a_role_that_may_not_list_workers_sees_its_sources(status: int) -> None:
    """The remedy is about rights. The worker is enabled, because it returns the sources."""
    worker, source, left = _checked({**_WORKER, _WORKER_PAGE: page({"reason": "client is not authorized"}, status)})
    assert (worker.level, source.level, left.subject) == (Level.WARNING, Level.FAILURE, "gone")
    assert "superusers" in worker.remedy
    assert "functionsWorkerEnabled" not in worker.remedy


def test_a_worker_that_is_not_enabled_or_refuses_has_its_own_remedy() -> None:
    """The status code of the answer decides."""
    [disabled] = _checked({**_WORKER, _WORKER_PAGE: page({"reason": "Function worker service is not done"}, 503)})
    assert (disabled.level, "functionsWorkerEnabled=true" in disabled.remedy) == (Level.FAILURE, True)
    [_, refused] = _checked(
        {**_WORKER, _WORKER_PAGE: page({}, 401), "/admin/v3/sources/public/default": page({"reason": "no"}, 403)}
    )
    assert refused.level is Level.FAILURE
    assert refused.remedy == "pulsar-admin namespaces grant-permission --role ROLE --actions sources public/default"


class _Node:
    """The session of a node that raises `refusal` when its settings are read."""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal

    def execute(self, query: str, timeout: float) -> Sequence[Mapping[str, Any]]:
        if "system_views" in query:
            raise self._refusal
        if "toUnixTimestamp" in query:
            return [{"now": int(time.time() * 1000)}]
        if "FROM system.local" in query:
            local = {
                "host_id": UUID(int=7),
                "release_version": "5.0.4",
                "data_center": "dc1",
                "rpc_address": "10.0.0.7",
            }
            return [local]
        if "system_schema.tables" in query:
            return [{"keyspace_name": "shop", "table_name": "orders", "id": UUID(int=8), "cdc": True, "written_us": 1}]
        return []


def _of_node(node: _Node, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.setattr(NodeConnection, "_connected", lambda self: node)
    return list(_cassandra(LineConfig.from_mapping({"contactPoints": "10.0.0.7"})))


def test_a_role_that_may_not_read_settings_is_no_failure_and_hides_no_other_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent needs only a role with LOGIN, without grants."""
    refusal = Unauthorized("User cdc has no SELECT permission on <table system_views.settings> or any of its parents")
    version, settings, clock, tables = _of_node(_Node(refusal), monkeypatch)
    assert (version.level, settings.level, clock.level, tables.level) == (Level.OK, Level.WARNING, Level.OK, Level.OK)
    assert settings.remedy.startswith("GRANT SELECT ON system_views.settings TO ROLE")
    assert tables.text == "1 with cdc = true: shop.orders"


def test_tables_are_checked_on_the_first_node_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first contact point is down. Two nodes answer, but tables are checked once."""
    node = _Node(Unauthorized("no"))
    line = LineConfig.from_mapping({"contactPoints": "a..b,10.0.0.7,10.0.0.8"})
    connected = NodeConnection._connected
    monkeypatch.setattr(
        NodeConnection, "_connected", lambda self: connected(self) if "a..b" in self._contact_points else node
    )
    found = list(_cassandra(line))
    assert (found[0].level, found[0].subject) == (Level.FAILURE, "node a..b")
    assert [each.text for each in found if each.subject == "tables"] == ["1 with cdc = true: shop.orders"]


@pytest.mark.parametrize(("apart_s", "said"), [(60.0, "behind that"), (-60.0, "ahead of that")])
def test_a_clock_is_behind_or_ahead(apart_s: float, said: str) -> None:
    """The argument is the time of this machine minus that of the server."""
    found = _clock("node", apart_s)
    assert (found.level, f"{said} of this machine" in found.text) == (Level.WARNING, True)


class _Ring(_Node):
    """The session of a node at 127.0.0.1 that knows two others."""

    def execute(self, query: str, timeout: float) -> Sequence[Mapping[str, Any]]:
        shared = {"release_version": "5.0.9", "data_center": "dc1"}
        rows = [{**shared, "host_id": UUID(int=number), "rpc_address": f"127.0.0.{number}"} for number in (1, 2, 3)]
        if "rpc_address FROM system." in query:
            return rows[:1] if "FROM system.local" in query else rows[1:]
        return super().execute(query, timeout)


@contextmanager
def _ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineConfig]:
    """A line whose nodes 1 and 3 listen, and whose node 2 does not."""
    monkeypatch.setattr(NodeConnection, "_connected", lambda self: _Ring(Unauthorized("no")))
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with socket.create_server(("127.0.0.3", port)):
            yield LineConfig.from_mapping({"contactPoints": "127.0.0.1", "port": port})


def test_a_node_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still in the list of the other nodes. It is a failure unless its agent reports it."""
    with _ring(monkeypatch) as line:
        cluster = cluster_of(line)
    found = cluster.finding([], 0.0)
    text = f"3 nodes, 5.0.9; 1 of them down (nothing listens on port {line.port}): 127.0.0.2"
    assert (found.level, found.text) == (Level.FAILURE, text)
    assert found.remedy == "start Cassandra there, or see its log"
    content = {**recorded("agent-status"), "node_id": str(UUID(int=2)), "cassandra_problem": "refused"}
    told = cluster.finding([AgentStatus("http://agent", content)], _WRITTEN_S + 1)
    assert (told.level, told.text) == (Level.WARNING, text)
    assert cluster.finding([AgentStatus("http://agent", content)], _WRITTEN_S + 60).level is Level.FAILURE


def test_a_node_that_this_machine_does_not_reach_may_be_up() -> None:
    """A firewall or a container may be in between."""
    nodes = [Node(host_id=UUID(int=n), address=f"10.0.0.{n}", version="5.0.9", data_center="dc1") for n in range(1, 8)]
    found = Cluster(port=9042, nodes=nodes, silent=nodes[1:]).finding([], 0.0)
    shown = "10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5, 10.0.0.6 and 1 more"
    assert (found.level, found.text) == (Level.WARNING, f"7 nodes, 5.0.9; 6 of them not reached from here: {shown}")
    assert Cluster(port=9042, nodes=nodes[:1]).finding([], 0.0) == ok("Cassandra", "1 node, 5.0.9")


def test_the_doctor_tells_of_nodes_and_agents_as_the_status_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It used to pass an agent that had ended, and a node that never had one."""
    (tmp_path / "status.json").write_text(json.dumps({**recorded("agent-status"), "node_id": str(UUID(int=1))}))
    pages = {
        **_WORKER,
        "/admin/v2/brokers/version": Page(b"4.0.10"),
        _TOPICS: page([]),
        f"{_TOPICS}/partitioned": page([]),
    }
    with _ring(monkeypatch) as ring, serving(pages) as url:
        line = ring.model_copy(update={"pulsar_admin_url": url, "agents": (str(tmp_path),)})
        told = {each.title: each.findings for each in line_status(line)}
        checked = {each.title: each.findings for each in doctor(line)}
    assert [_without_times(each) for each in checked["agents"]] == [_without_times(each) for each in told["agents"]]
    assert told["servers"][0] in checked["Cassandra"]
    ended, second, third = checked["agents"]
    assert (ended.level, "does not run; process " in ended.text) == (Level.FAILURE, True)
    for number, node in ((2, second), (3, third)):
        assert (node.level, node.subject) == (Level.FAILURE, f"node 127.0.0.{number}")
        assert node.text == f"no agent publishes the changes of this node (host id {UUID(int=number)})"


def test_an_agents_topic_that_gives_no_answer_hides_no_other_node() -> None:
    """All nodes had one error, whose remedy was the command that printed it."""
    pages = {
        f"/admin/v2/persistent/public/default/cdc-events-agent-{UUID(int=1)}/partitions": page(_NO_BROKER, 503),
        f"/admin/v2/persistent/public/default/cdc-events-agent-{UUID(int=2)}/partitions": page({"reason": "none"}, 404),
    }
    nodes = [
        Node(host_id=UUID(int=number), address=f"10.0.0.{number}", version="5.0.9", data_center="dc1")
        for number in (1, 2)
    ]
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        silent, uncovered = agents_section(service, config, Cluster(port=9042, nodes=nodes), [], []).findings
    assert (silent.level, silent.subject) == (Level.WARNING, "node 10.0.0.1")
    assert silent.text.startswith("whether an agent publishes its changes is not known: ")
    topic = f"persistent://public/default/cdc-events-agent-{UUID(int=1)}"
    assert silent.remedy.startswith(f"`pulsar-admin topics lookup {topic}` names its broker: ")
    assert (uncovered.level, uncovered.subject) == (Level.FAILURE, "node 10.0.0.2")


def test_brokers_that_give_no_answer_delay_the_nodes_only_once() -> None:
    """Each node's topic took ten seconds, one after the other: `cdc status` of fifty nodes took minutes."""
    nodes = [
        Node(host_id=UUID(int=number), address=f"10.0.0.{number}", version="5.0.9", data_center="dc1")
        for number in range(1, 51)
    ]
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hanging:  # it accepts, and never answers
        config = _line(f"http://127.0.0.1:{hanging.getsockname()[1]}")
        with PulsarService(config, timeout_s=0.2) as service:
            began = time.monotonic()
            *unknown, left_out = agents_section(service, config, Cluster(port=9042, nodes=nodes), [], []).findings
    assert time.monotonic() - began < 5
    assert {each.level for each in unknown} == {Level.WARNING}
    assert 16 <= len(unknown) < 24
    skipped = left_out.facts["not_asked"]
    assert isinstance(skipped, list)
    assert {*skipped, *(each.subject for each in unknown)} == {f"node {each.address}" for each in nodes}


def test_the_doctor_does_not_ask_a_broker_that_hangs_for_each_of_its_topics() -> None:
    """A thousand topics took twenty minutes."""
    names = [f"persistent://public/default/cdc-events-shop.t{number:02}" for number in range(60)]
    pages = dict(_WORKER) | {_TOPICS: page([]), f"{_TOPICS}/partitioned": page(names)}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hanging:  # it accepts, and never answers
        broker = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        for name in names:
            path = f"/admin/v2/persistent/public/default/{name.rpartition('/')[2]}/partitions"
            pages[path] = Page(b"", 307, headers=(("Location", f"{broker}{path}"),))
        with serving(pages) as url, PulsarService(config := _line(url), timeout_s=0.2) as service:
            *unknown, left_out = _topics(service, config)
    assert {each.level for each in unknown} == {Level.WARNING}
    assert 16 <= len(unknown) < 24
    skipped = left_out.facts["not_asked"]
    assert isinstance(skipped, list)
    assert {each.rpartition("/")[2] for each in names} <= {*skipped, *(each.subject for each in unknown)}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(403, "grant the right to read the topics' policies (tenant admin)"), (503, "`pulsar-admin topics lookup ")],
)
def test_a_broker_that_is_away_is_not_a_missing_right(status: int, remedy: str) -> None:
    """For every error about policies, the remedy was to grant a right."""
    topic = "persistent://public/default/data-shop.orders"
    pages = {"/admin/v2/persistent/public/default/data-shop.orders/messageTTL": page({"reason": "no"}, status)}
    with serving(pages) as url, PulsarService(_line(url)) as service:
        checks = _PolicyChecks(asked_once(service))
        checks.look([topic])
    [found] = checks.findings()
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (403, "correct the credentials in line.yaml, or grant the role the right to list topics of public/default"),
        (500, "start it, or correct pulsarAdminUrl and credentials in line.yaml"),
    ],
)
def test_a_pulsar_that_refuses_is_not_to_be_started(status: int, remedy: str) -> None:
    pages = dict.fromkeys((_TOPICS, f"{_TOPICS}/partitioned"), page({"reason": "no"}, status))
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        assert _broker(config, _pulsar_of_line(service, config)).remedy == remedy


def test_the_namespace_whose_topics_are_refused_is_named() -> None:
    """The namespace of the sources was named, although the role lacked the right to that of the events topics."""
    events = "/admin/v2/persistent/shop/events"
    pages = dict.fromkeys((events, f"{events}/partitioned"), page({"reason": "no"}, 403))
    pages |= dict.fromkeys((_TOPICS, f"{_TOPICS}/partitioned"), page([]))
    with serving(pages) as url:
        config = _line(url, topicPrefix="persistent://shop/events/cdc-")
        with PulsarService(config) as service:
            assert _broker(config, _pulsar_of_line(service, config)).remedy.endswith(" to list topics of shop/events")


def _without_times(found: Finding) -> tuple[Level, str, str]:
    return found.level, found.subject, found.text.partition("wrote its last status")[0]


def test_a_node_that_stops_answering_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a refused query is not a failure."""
    [found] = _of_node(_Node(OperationTimedOut()), monkeypatch)
    assert (found.level, "does not answer" in found.text) == (Level.FAILURE, True)


_GAPS: Final = "/admin/v2/persistent/public/default/cdc-events-gaps"
_PEEKED: Final = f"{_GAPS}/subscription/sub/position"


def _gap(number: int) -> GapRecord:
    return replace(GAP, table=f"t{number}", from_ms=None, to_ms=1_795_000_000_000, reason="2 segments went")


def _gap_pages(records: Sequence[GapRecord]) -> dict[str, Page]:
    """The answers of a broker for a topic without partitions and with these records."""
    stats = {"subscriptions": {"sub": {"msgBacklog": len(records), "consumers": []}}}
    messages = {f"{_PEEKED}/{place}": Page(encode_gap(each)) for place, each in enumerate(records, 1)}
    return {f"{_GAPS}/partitions": page({"partitions": 0}), f"{_GAPS}/stats": page(stats), **messages}


def _gaps(pages: Mapping[str, Page]) -> list[Finding]:
    with serving(pages) as url:
        config = _line(url, eventsSubscriptionName="sub")
        with PulsarService(config) as service:
            return gaps(service, config, 0.0)


def test_gaps_are_counted_however_many_records_wait() -> None:
    """The record that closes a gap may be the last of more than a thousand."""
    opened = [_gap(number) for number in range(550)]
    closed = [each.closed(1_795_000_002_000, "3 rows were sent again") for each in opened]
    assert _gaps(_gap_pages([*opened, *closed])) == [ok("", "none is open, 550 are closed", gaps=0)]


@pytest.mark.parametrize("closes", [1, 2])
def test_a_request_on_a_connection_that_was_closed_is_sent_once_more(closes: int) -> None:
    """Pulsar closes a connection while it is idle, and the client has not seen that yet."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            for number in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    if number >= closes:
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n4.0.8")

        served = pool.submit(answer)
        with PulsarService(_line(f"http://127.0.0.1:{server.getsockname()[1]}")) as service:
            if closes == 1:
                assert service.version() == "4.0.8"
            else:
                with pytest.raises(PulsarServiceError, match="does not answer"):
                    service.version()
        served.result(10)


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_read_gap_records_is_not_told_that_none_is_open(status: int) -> None:
    """The remedy is the right to consume, not to clear the backlog."""
    [found] = _gaps({**_gap_pages([_gap(1)]), f"{_PEEKED}/1": page({"reason": "no permission"}, status)})
    assert found.level is Level.FAILURE
    assert found.text.startswith("whether a gap is open is not known: ")
    assert found.remedy == (
        "pulsar-admin topics grant-permission --role ROLE --actions consume persistent://public/default/cdc-events-gaps"
    )


def test_an_error_of_the_broker_is_no_end_of_the_gap_records() -> None:
    """Only a missing message ends the list of records."""
    records = [_gap(number) for number in range(3)]
    with pytest.raises(PulsarServiceError, match="answers 500"):
        _gaps({**_gap_pages(records), f"{_PEEKED}/2": page({"reason": "bookkeeper"}, 500)})
    pages = _gap_pages(records)
    del pages[f"{_PEEKED}/3"]
    [found] = _gaps(pages)
    assert found.text.startswith("whether a gap is open is not known: of 3 messages 2 were read. 2 gaps are open")


_WRITTEN_S: Final = datetime.fromisoformat(recorded("agent-status")["time"]).timestamp()


def _asked(answer: Page) -> AgentStatus:
    with serving({"/status": answer}) as url:
        return AgentStatus.of_url(url)


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_the_age_of_an_agents_status_is_measured_by_its_own_clock(ahead_s: float) -> None:
    """The clock of this machine may differ."""
    body = (HEALTH / "agent-status.json").read_bytes()
    [well] = _asked(Page(body)).findings(_WRITTEN_S + ahead_s)
    assert (well.level, well.text) == (Level.OK, "runs, lag 0 B, 0.0 s; 0 events/s")
    [silent] = _asked(Page(body, date="Mon, 23 Nov 2026 17:12:05 GMT")).findings(_WRITTEN_S + ahead_s)
    assert (silent.level, silent.text) == (Level.FAILURE, "answers, but wrote no status for 2 min")


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_without_the_date_of_its_answer_the_clock_of_this_machine_counts(date: str | None) -> None:
    """The finding says so."""
    status = _asked(Page((HEALTH / "agent-status.json").read_bytes(), date=date))
    assert [each.level for each in status.findings(_WRITTEN_S + 1)] == [Level.OK]
    [silent] = status.findings(_WRITTEN_S + 120)
    assert silent.text == "answers, but wrote no status for 2 min by the clock of this machine, which may differ"


_OTHERS: Final = [
    {},
    [],
    {"database": "ok", "version": "11.0"},  # Grafana, which has the port of docs' examples
    {**recorded("agent-status"), "time": "soon"},
    {**recorded("agent-status"), "metrics": {"parked": "three"}},
    {**recorded("agent-status"), "topics": {"shop.orders": None}},
]


@pytest.mark.parametrize("content", _OTHERS, ids=range(len(_OTHERS)))
def test_what_is_no_status_of_an_agent_is_reported_as_such(content: object, tmp_path: Path) -> None:
    """Another program may answer at the address, and the file may be damaged."""
    with pytest.raises(
        NoStatusError,
        match=r"^http://127.0.0.1:\d+ answers, but .*/status is no agent's status \(.+\); correct this URL under agents in line\.yaml$",
    ):
        _asked(page(content))
    (tmp_path / "status.json").write_text(json.dumps(content))
    with pytest.raises(
        NoStatusError, match=r"status\.json is no agent's status \(.+\); correct agents in line\.yaml; "
    ):
        AgentStatus.of_folder(tmp_path)


@pytest.mark.parametrize("status", [302, 401, 500, 503])
def test_another_server_or_a_proxy_that_answers_is_not_to_be_started(status: int) -> None:
    """It was said not to answer, in two or three lines."""
    with pytest.raises(
        NoStatusError,
        match=rf"/status is no agent's status \(HTTP {status}.*\); correct this URL under agents in line\.yaml$",
    ) as raised:
        _asked(page({"reason": "no"}, status))
    assert "\n" not in str(raised.value)


def test_an_agent_that_starts_has_no_status_yet() -> None:
    """It answers 503 and `{}`."""
    with pytest.raises(NoStatusError, match="answers, and has written no status yet"):
        _asked(Page(b"{}\n", 503))


def test_partitions_that_a_mirror_does_not_know_are_asked_for(tmp_path: Path) -> None:
    """The topic had two partitions when the mirror was written."""
    names = [f"persistent://public/default/data-shop.orders-partition-{number}" for number in range(3)]
    paths = [f"/admin/v2/persistent/public/default/{name.rpartition('/')[2]}/lastMessageId" for name in names]
    state = {"epoch": 7, "clock_s": 0, "positions": {names[0]: [5, 9, -1], names[1]: [6, 2, 0]}}
    (tmp_path / "applied").mkdir()
    (tmp_path / "applied" / "7.json").write_text(json.dumps(state))
    ends = [{"ledgerId": 5, "entryId": 9}, {"ledgerId": 6, "entryId": 2}, {"ledgerId": 7, "entryId": 3}]
    pages = {
        "/admin/v2/persistent/public/default/data-shop.orders/partitions": page({"partitions": 3}),
        **{path: page(end) for path, end in zip(paths, ends, strict=True)},
    }

    def found(pages: Mapping[str, Page]) -> Finding:
        with serving(pages) as url, PulsarService(_line(url)) as service:
            return mirror_finding(service, str(tmp_path), _WRITTEN_S)

    assert found(pages).text.startswith("lacks records of 1 of 3 topic partitions")
    assert found(pages).remedy.endswith("began with startingOffsets: those partitions have older records only")
    behind = {**pages, paths[0]: page({"ledgerId": 5, "entryId": 10})}
    assert found(behind).remedy == "start cdc spark mirror (--follow keeps it running)"
    assert found({}).text == f"its topic does not exist: {names[0]}, and 1 partitions more"


def test_a_mirror_whose_state_is_damaged_is_a_failure(tmp_path: Path) -> None:
    """A power failure cut the state file. This used to end in a traceback."""
    (tmp_path / "applied").mkdir()
    (tmp_path / "applied" / "7.json").write_text('{"epoch": 7, "posi')
    with serving({}) as url, PulsarService(_line(url)) as service:
        found = mirror_finding(service, str(tmp_path), _WRITTEN_S)
    assert (found.level, found.text.startswith("cannot be read (Unterminated string")) == (Level.FAILURE, True)


@pytest.mark.parametrize("url", ["http://[::1", "http://pulsar:80x"])
def test_a_wrong_url_of_the_admin_service_is_a_mistake_of_the_configuration(url: str) -> None:
    """The error is one line."""
    with pytest.raises(ConfigError, match=r"^pulsarAdminUrl: 'http://.*' is no URL \(.+\); write one such as http://"):
        PulsarService(_line(url))


def test_a_contact_point_that_is_no_host_name_is_a_failure() -> None:
    """It is not looked up."""
    [found] = _cassandra(LineConfig.from_mapping({"contactPoints": "a..b"}))
    assert found.level is Level.FAILURE
    assert "does not answer: Cassandra at a..b port 9042: an address is no host name (" in found.text
    assert found.text.endswith("; check contactPoints")


_TOPICS: Final = "/admin/v2/persistent/public/default"


@pytest.mark.parametrize(
    ("version", "topics", "said"),
    [
        (Page(b"4.0.10", date=None), Page(b"[]"), "answers without a Date; is it Pulsar's admin service?"),
        (Page(b"4.0.10", date="now"), Page(b"[]"), "answers without a Date; is it Pulsar's admin service?"),
        (
            Page(b"4.0.10"),
            Page(b""),
            "answers something else than topics of public/default; is it Pulsar's admin service?",
        ),
        (
            Page(b"4.0.10"),
            Page(b"7"),
            "answers something else than topics of public/default; is it Pulsar's admin service?",
        ),
        (Page(b"4.0.10"), Page(b"<html>"), f"answers something else than JSON to {_TOPICS[6:]}/partitioned"),
    ],
)
def test_another_server_at_the_address_of_the_admin_service_is_reported(version: Page, topics: Page, said: str) -> None:
    """Such a server may answer 200 to every request."""
    pages = {"/admin/v2/brokers/version": version, _TOPICS: topics, f"{_TOPICS}/partitioned": topics}
    with serving(pages) as url, PulsarService(_line(url)) as service:
        found = [each for each in _pulsar(service) if each.level is Level.FAILURE]
    assert [each.text for each in found] == [f"{url}: {said}"]


def _line_of_orders(
    options: Mapping[str, object], topic: str, data: str, data_pages: Mapping[str, Page]
) -> dict[str, Page]:
    """The pages of a line with one table and one source, whose data topic has these pages."""
    events = "/admin/v2/persistent/public/default/cdc-events-shop.orders"
    subscription = {"msgBacklog": 0, "consumers": [{}]}
    source = {"className": "", "topicName": topic, "configs": options}
    return {
        **_WORKER,
        "/admin/v3/sources/public/default/shop": page(source),
        _TOPICS: page([]),
        f"{_TOPICS}/partitioned": page(["persistent://public/default/cdc-events-shop.orders"]),
        f"{events}/partitions": page({"partitions": 1}),
        f"{events}/partitioned-stats": page({"subscriptions": {"sub": subscription}}),
        f"{events}/messageTTL": page(0),
        f"{events}/backlogQuotaMap": page({}),
        "/admin/v2/namespaces/public/default/subscriptionExpirationTime": page(0),
        f"/admin/v2/persistent/{data}/partitions": page({"partitions": 0}),
        **{f"/admin/v2/persistent/{data}/{name}": each for name, each in data_pages.items()},
    }


_SOURCES_WITH_OWN_TOPICS: Final = [
    ({"tables": "shop.*", "destination": "lake-{keyspace}.{table}"}, "unused", "public/default/lake-shop.orders"),
    ({"keyspace": "shop", "table": "orders"}, "persistent://acme/out/orders", "acme/out/orders"),
]


@pytest.mark.parametrize(("options", "topic", "data"), _SOURCES_WITH_OWN_TOPICS)
def test_a_data_topic_is_found_by_the_options_of_its_source(options: dict[str, object], topic: str, data: str) -> None:
    """Its name need not begin with data-, and its namespace may differ from that of the events."""
    policies = {
        "messageTTL": page(60),
        "backlogQuotaMap": page({}),
        "retention": page({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
    }
    namespace = f"/admin/v2/namespaces/{data.rpartition('/')[0]}/subscriptionExpirationTime"
    pages = _line_of_orders(options, topic, data, {"stats": page({"storageSize": 3 * 1024}), **policies})
    short = data.rpartition("/")[2]
    with (
        serving({**pages, namespace: page(0)}) as url,
        PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service,
    ):
        table, deleted = tables(service, config, service.topics("public/default"), sources_of(service), 0.0)
        assert f"nothing waits; {short} has 3.0 KiB" in table.text
        events, found = _topics(service, config)
    assert (events.level, found.level, found.subject) == (Level.OK, Level.WARNING, short)
    assert found.text.startswith("the message TTL drops records")
    assert deleted == found


@pytest.mark.parametrize(("ahead_s", "ago_s", "is_named"), [(40, 1, False), (40, 30, True), (0, 30, True)])
def test_a_busy_table_does_not_stall_because_the_clock_of_this_machine_is_wrong(
    ahead_s: int, ago_s: int, is_named: bool
) -> None:
    """It always has a backlog. The last acknowledgement was a second ago, and seemed to be 41 s ago."""
    pages = _line_of_orders({"tables": "shop.*"}, "unused", "public/default/data-shop.orders", {})
    broker_s = datetime(2026, 11, 23, 17, 10, 5, tzinfo=UTC).timestamp()  # the Date of all answers
    since_ms = int((broker_s - ago_s) * 1000)
    subscription = {
        "msgBacklog": 1,
        "earliestMsgPublishTimeInBacklog": since_ms,
        "lastAckedTimestamp": since_ms,
        "consumers": [{"connectedSince": "2026-11-23T09:00:00.000Z"}],
    }
    stats = page({"subscriptions": {"sub": subscription}})
    pages["/admin/v2/persistent/public/default/cdc-events-shop.orders/partitioned-stats"] = stats
    pages["/admin/v2/brokers/version"] = Page(b"4.0.10")
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        topics = service.topics("public/default")
        table, *_ = tables(service, config, topics, sources_of(service), broker_s + ahead_s)
    assert ("none of its events was acknowledged" in table.text) is is_named


@pytest.mark.parametrize(("minutes", "megabytes", "said"), [(0, 0, 1), (0, 512, 1), (-1, -1, 0), (60, 512, 0)])
def test_status_and_doctor_tell_of_a_data_topic_without_retention(minutes: int, megabytes: int, said: int) -> None:
    """Pulsar deletes its records as soon as no subscription holds them. This used to be seen by the doctor alone."""
    data = "public/default/data-shop.orders"
    retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    policies = {"messageTTL": page(0), "backlogQuotaMap": page({}), "retention": page(retention)}
    pages = _line_of_orders({"tables": "shop.*"}, "unused", data, {"stats": page({"storageSize": 1}), **policies})
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        _, *deleted = tables(service, config, service.topics("public/default"), sources_of(service), 0.0)
        found = [each for each in _topics(service, config) if each.level is not Level.OK]
    assert deleted == found
    assert [(each.level, each.subject) for each in deleted] == [(Level.WARNING, "data-shop.orders")] * said
    for each in deleted:
        assert each.text == "records that no subscription holds are deleted, because there is no retention"
        assert each.remedy == (
            f"`pulsar-admin topicPolicies set-retention persistent://{data} --time -1 --size -1`, or the option"
            " dataTopic.retentionMinutes of the source"
        )


def test_a_policy_of_several_data_topics_is_told_once() -> None:
    """By default, no topic has a retention. The topics are sorted, so that the screen is the same each time."""
    topics = [f"/admin/v2/persistent/public/default/data-shop.t{number}" for number in (2, 0, 1)]
    pages = {"/admin/v2/namespaces/public/default/subscriptionExpirationTime": page(0)}
    for number, each in enumerate(topics):
        pages |= {f"{each}/{name}": page({}) for name in ("backlogQuotaMap", "retention")}
        pages[f"{each}/messageTTL"] = page(60 if number == 2 else 0)
    names = [f"persistent:/{each.removeprefix('/admin/v2/persistent')}" for each in topics]
    with serving(pages) as url, PulsarService(_line(url)) as service:
        checks = _PolicyChecks(asked_once(service))
        checks.look(names)
    kept, dropped = checks.findings()
    assert (kept.subject, dropped.subject) == ("data-shop.t0", "data-shop.t1")
    assert kept.text.endswith("there is no retention; the same holds for 2 other data topics, which `cdc doctor` lists")
    assert kept.facts == {"topics": sorted(names)}
    assert kept.remedy.startswith(
        f"`pulsar-admin topicPolicies set-retention {min(names)} --time -1 --size -1`, or the option"
    )
    assert dropped.text == "the message TTL drops records that were not read for 60 s"


_OTHER_POLICIES: Final = ("messageTTL", "backlogQuotaMap")


def test_policies_of_data_topics_that_cannot_be_read_are_told_once() -> None:
    """A role needs the right to it. What the topics share is asked once."""
    names = [f"persistent://public/default/data-shop.t{number}" for number in range(3)]
    expiration = "/admin/v2/namespaces/public/default/subscriptionExpirationTime"
    topics = [f"/admin/v2/persistent/public/default/data-shop.t{number}" for number in range(3)]
    pages = {
        expiration: page(0),
        **{f"{each}/{name}": page(0 if name == "messageTTL" else {}) for each in topics for name in _OTHER_POLICIES},
        **{f"{each}/retention": page({"reason": "no right"}, 403) for each in topics},
    }
    asked: list[str] = []

    class Counting(PulsarService):
        def policy(self, topic: str, path: str) -> object:
            asked.append(path)
            return super().policy(topic, path)

    with serving(pages) as url, Counting(_line(url)) as service:
        checks = _PolicyChecks(asked_once(service))
        checks.look(names)
    [found] = checks.findings()
    assert (found.level, found.subject) == (Level.WARNING, "data topics")
    said = (
        f"it is not known whether Pulsar deletes records of data-shop.t0 and 2 other topics: {url} answers 403 to GET "
    )
    assert found.text.startswith(said)
    assert sum("subscriptionExpirationTime" in each for each in asked) == 1


def test_status_tells_of_a_policy_that_deletes_events_unless_the_agent_has() -> None:
    """The agent checks the policies once an hour, so the status said for an hour that all is well."""
    data = "public/default/data-shop.orders"
    kept = {
        "retention": page({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        "stats": page({"storageSize": 1}),
    }
    well = {"messageTTL": page(0), "backlogQuotaMap": page({})}
    pages = _line_of_orders({"tables": "shop.*"}, "unused", data, {**kept, **well})
    pages["/admin/v2/persistent/public/default/cdc-events-shop.orders/messageTTL"] = page(60)
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        topics, sources = service.topics("public/default"), sources_of(service)
        _, found = tables(service, config, topics, sources, 0.0)
        told = {as_hazard(found)}
        [_] = tables(service, config, topics, sources, 0.0, told)
    assert (found.level, found.subject) == (Level.WARNING, "cdc-events-shop.orders")
    assert found.text == "the message TTL drops events that were not read for 60 s"
    assert found.remedy.startswith(
        "`pulsar-admin topics set-message-ttl persistent://public/default/cdc-events-shop.orders"
    )


def test_a_data_topic_without_the_right_to_look_at_it_hides_no_table() -> None:
    """It may belong to another tenant, where only the source's role has rights."""
    options, topic, data = _SOURCES_WITH_OWN_TOPICS[1]
    refused = page({"reason": "no"}, 403)
    pages = _line_of_orders(options, topic, data, {"stats": refused, "partitions": refused, "messageTTL": refused})
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        table, policies = tables(service, config, service.topics("public/default"), sources_of(service), 0.0)
        assert (policies.level, policies.subject) == (Level.WARNING, "data topics")
        assert policies.text.startswith("it is not known whether Pulsar deletes records of orders: ")
        assert "nothing waits; the size of orders is not known: " in table.text
        [events, found] = _topics(service, config)
    assert (events.level, found.level, found.remedy) == (Level.OK, Level.WARNING, "grant the right to read them")


_NO_BROKER: Final = {"reason": "Failed to find ownership for topic"}


def test_a_topic_that_gives_no_answer_hides_no_other_table() -> None:
    """The broker of one topic is away. The section had one error, and no table."""
    data = "public/default/data-shop.orders"
    pages = _line_of_orders({"tables": "shop.*"}, "unused", data, {"stats": page({"storageSize": 1})})
    names = [f"persistent://public/default/cdc-events-shop.{name}" for name in ("orders", "parts", "users")]
    pages[f"{_TOPICS}/partitioned"] = page(names)
    for name in ("parts", "users"):
        pages[f"/admin/v2/persistent/public/default/cdc-events-shop.{name}/partitions"] = page(_NO_BROKER, 503)
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        found = tables(service, config, service.topics("public/default"), sources_of(service), 0.0)
    orders, parts, *_ = found
    assert (orders.level, orders.subject) == (Level.OK, "shop.orders")
    assert "nothing waits; data-shop.orders has 1 B" in orders.text
    assert (parts.level, parts.subject, parts.facts["subjects"]) == (
        Level.FAILURE,
        "shop.parts",
        ["shop.parts", "shop.users"],
    )
    assert parts.text.startswith(
        f"its state is not known, because the request for its topic failed (also for shop.users): {url} answers 503 to GET "
    )
    assert parts.remedy.startswith(f"`pulsar-admin topics lookup {names[1]}` names its broker: see that broker's log")
    assert not [each for each in found if each.subject == "events topics"]


def test_a_data_topic_that_gives_no_answer_does_not_hide_its_table() -> None:
    """Its size is not known, and the broker is named with the remedy."""
    data = "public/default/data-shop.orders"
    pages = _line_of_orders({"tables": "shop.*"}, "unused", data, {"partitions": page(_NO_BROKER, 503)})
    with serving(pages) as url, PulsarService(config := _line(url, eventsSubscriptionName="sub")) as service:
        table, topic = tables(service, config, service.topics("public/default"), sources_of(service), 0.0)
    assert "nothing waits; the size of data-shop.orders is not known" in table.text
    assert (topic.level, topic.subject) == (Level.FAILURE, "data-shop.orders")


def test_a_dead_letter_topic_that_gives_no_answer_hides_no_other() -> None:
    """A source may have a topic of its own, at another broker."""
    pages = {
        f"/admin/v2/persistent/public/default/{name}/partitions": page(answer, status)
        for name, answer, status in (("cdc-dead-letters", _NO_BROKER, 503), ("mine", {"reason": "no topic"}, 404))
    }
    source = SourceView(
        name="s", topic="", options={"deadLetter.topic": "mine"}, wanted=1, instances=(), is_stopped=False
    )
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        mine, lost = dead_letters(service, config, [source], 0.0)
    assert (mine.level, mine.subject, mine.text) == (Level.OK, "mine", "none")
    assert (lost.level, lost.subject) == (Level.FAILURE, "cdc-dead-letters")


def test_after_many_topics_without_an_answer_the_others_are_not_asked_for() -> None:
    """Each takes ten seconds, and a line may have a thousand tables. A refusal takes no time."""
    unanswered = Unanswered()
    for number in range(16):
        assert not unanswered.skips(f"t{number}")
        unanswered.add(f"t{number}", f"persistent://public/default/cdc-events-t{number}", PulsarServiceError("silent"))
        unanswered.add(f"r{number}", "persistent://public/default/r", PulsarServiceError("no right", 403))
    assert unanswered.skips("shop.orders")
    silent, *_, skipped = sorted(unanswered.findings(), key=lambda each: not each.text.endswith("silent"))
    assert silent.text.endswith("(also for t1, t10, t11 and 12 others): silent")
    assert skipped.facts == {"not_asked": ["shop.orders"]}


def test_the_broker_that_does_not_answer_is_named() -> None:
    """The admin service sends the request to the topic's own broker. The admin service itself was named."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens there
        broker = f"http://127.0.0.1:{closed.getsockname()[1]}"
        path = "/admin/v2/persistent/public/default/t/partitions"
        moved = Page(b"", 307, headers=(("Location", f"{broker}{path}"),))
        with (
            serving({path: moved}) as url,
            PulsarService(_line(url)) as service,
            pytest.raises(PulsarServiceError) as raised,
        ):
            service.stats("public/default/t")
    assert str(raised.value).startswith(f"{broker} does not answer (")


@pytest.mark.parametrize("body", [b"", b"[]", b"7"])
def test_an_answer_of_another_kind_is_an_error_of_the_service(body: bytes) -> None:
    """The same holds for topics and sources."""
    asked: list[tuple[str, Callable[[PulsarService], object]]] = [
        ("/admin/v2/persistent/public/default/t/partitions", lambda service: service.stats("public/default/t")),
        ("/admin/v3/sources/public/default/shop", lambda service: service.source("shop")),
    ]
    for path, ask in asked:
        with (
            serving({path: Page(body)}) as url,
            PulsarService(_line(url)) as service,
            pytest.raises(PulsarServiceError, match=r"answers (None|\[\]|7) to /.*; is it Pulsar's admin service\?$"),
        ):
            ask(service)


@pytest.mark.parametrize("value", [5, True, {"a": 1}])
def test_an_option_of_a_source_may_have_a_value_of_another_type(value: object) -> None:
    """Such a source does not start. The other sources are still checked."""
    line = LineConfig.from_mapping({})
    letters = dead_letter_topics(line, [{"events.topic": value, "deadLetter.topic": "x"}, {"deadLetter.topic": "mine"}])
    assert letters == (line.dead_letters, "persistent://public/default/mine")
    source = SourceView(name="s", topic="", options={"tables": value}, wanted=1, instances=(), is_stopped=False)
    assert data_topics("shop.orders", [source]) == ("persistent://public/default/data-shop.orders",)


def test_the_dead_letter_topics_of_a_line_are_its_own_and_those_of_its_sources() -> None:
    """Each topic is listed once. Deleted sources, and sources of other lines or programs, add none.

    The doctor checks the policies that would delete dead letters.
    """
    sources = "/admin/v3/sources/public/default"
    topics = "/admin/v2/persistent/public/default"
    pages = {
        sources: page(["gone", "other", "plain", "shop", "stage"]),
        f"{sources}/other": page({"className": "com.acme.Other", "configs": {"deadLetter.topic": "others"}}),
        f"{sources}/stage": page(
            {"configs": {"deadLetter.topic": "stage-letters", "events.topic": "stage-shop.orders"}}
        ),
        f"{sources}/plain": page({"configs": {"table": "orders"}}),
        f"{sources}/shop": page(
            {"configs": {"deadLetter.topic": "shop-letters", "events.topic": "cdc-events-shop.orders"}}
        ),
        topics: page([]),
        f"{topics}/partitioned": page([]),
        f"{topics}/shop-letters/partitions": page({"partitions": 0}),
        f"{topics}/shop-letters/stats": page({}),
        f"{topics}/shop-letters/messageTTL": page(60),
        f"{topics}/shop-letters/backlogQuotaMap": page({}),
        "/admin/v2/namespaces/public/default/subscriptionExpirationTime": page(0),
    }
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        assert asked_dead_letter_topics(config, service) == (
            "persistent://public/default/cdc-dead-letters",
            "persistent://public/default/shop-letters",
        )
        [found] = _topics(service, config)
    assert (found.level, found.subject) == (Level.WARNING, "shop-letters")
    assert found.text == "the message TTL drops dead letters that were not read for 60 s"
    assert found.remedy.startswith(
        "`pulsar-admin topics set-message-ttl persistent://public/default/shop-letters --ttl 0"
    )


def _letters(stats: Mapping[str, object] | None) -> Finding:
    topic = f"{_TOPICS}/cdc-dead-letters"
    pages = {} if stats is None else {f"{topic}/partitions": page({"partitions": 0}), f"{topic}/stats": page(stats)}
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        [found] = dead_letters(service, config, [], 0.0)
    return found


def test_dead_letters_are_counted() -> None:
    """A topic without letters, and one that does not exist, are well."""
    assert _letters(None) == ok("cdc-dead-letters", "none", letters=0)
    counted = [_letters({"subscriptions": {RESEND_SUBSCRIPTION: {"msgBacklog": number}}}) for number in (0, 1, 2)]
    assert [(each.level, each.text) for each in counted] == [
        (Level.OK, "none"),
        (Level.FAILURE, "1 change could not be published and is a dead letter"),
        (Level.FAILURE, "2 changes could not be published and are dead letters"),
    ]


def test_a_dead_letter_topic_without_its_subscription_is_not_said_to_be_empty() -> None:
    """Somebody has deleted the subscription, so Pulsar deletes the letters. This used to count as none."""
    found = _letters({"subscriptions": {}, "storageSize": 700})
    assert (found.level, found.text.startswith("whether there are any is not known: ")) == (Level.WARNING, True)
    assert found.remedy == (
        f"pulsar-admin topics create-subscription -m earliest -s {RESEND_SUBSCRIPTION}"
        " persistent://public/default/cdc-dead-letters"
    )


def test_a_dead_letter_topic_that_a_list_of_no_letters_has_created_is_empty() -> None:
    """`cdc connector dead-letters` on a pipeline without dead letters made Pulsar create it, and the warning stayed."""
    found = _letters({"subscriptions": {}, "storageSize": 0, "msgInCounter": 0})
    assert found == ok("cdc-dead-letters", "none", letters=0)


def test_a_node_that_refuses_the_login_is_not_said_to_be_down() -> None:
    """It answers, so a start would not help."""
    found = Cluster(port=9042, problem=f"Cassandra at 10.0.0.1 port 9042: Bad credentials{CHECK_LOGIN}").finding(
        [], 0.0
    )
    assert found.text == "refuses the login: Cassandra at 10.0.0.1 port 9042: Bad credentials"
    assert found.remedy == "correct username and password in line.yaml"
    down = Cluster(port=9042, problem="Cassandra at 10.0.0.1 port 9042: Connection refused").finding([], 0.0)
    assert down.text.startswith("does not answer: ") and down.remedy.startswith("start it, or correct contactPoints")
