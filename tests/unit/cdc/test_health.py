"""Findings of `cdc status` and `cdc doctor` for answers of servers, which were recorded from real ones.

The answers are in tests/golden/health.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from rich.console import Console

from cdc.commands.spark_options import may_be_iceberg
from cdc.health.agent_status import AgentStatus, NoStatusError
from cdc.health.backlog import Backlog
from cdc.health.completeness import _finding, completeness_of
from cdc.health.data_topics import data_topics
from cdc.health.doctor import agent_machine, captured_tables
from cdc.health.findings import Finding, Level, Section, failure, level_of, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.line_status import is_of_other_cluster, uncaptured
from cdc.health.local_agents import admin_url_of
from cdc.health.mirrors import judged_mirror, mirror_finding
from cdc.health.nodes import agents
from cdc.health.pulsar_service import PulsarService
from cdc.health.screen import print_sections, verdict
from cdc.health.sources import InstanceView, SourceView
from cdc.health.tables import events_tables, gap_finding
from cdc.health.wanted_tables import not_captured
from change_agent.reporting.http_endpoint import HttpEndpoint
from change_agent.reporting.process_space import process_space
from schemas.errors import ConfigError
from schemas.gap_record import GapRecord, encode_gap
from schemas.resolved import DEAD_LETTERS, NOT_READ, TableResolved
from schemas.topics import full_topic_name
from tests.golden.health_answers import HEALTH, recorded
from tests.servers.other_user import as_another_user
from tests.topics.gaps import GAP

_NOW_S = 1_795_453_200.0
# An instance that has ended by an error, as the functions worker tells it.
_ENDED = {"running": False, "error": "", "numRestarts": 1, "latestSystemExceptions": [], "latestSourceExceptions": []}


def _source(name: str, logs: Path | None = None) -> tuple[SourceView, Finding]:
    view = SourceView.of("shop", recorded("source"), recorded(f"source-{name}"))
    [finding] = view.findings(logs, _NOW_S)
    return view, finding


def test_a_source_that_runs_is_well() -> None:
    """The view has the full name of its data topic."""
    view, finding = _source("running")
    assert (finding.level, view.is_down, view.is_stopped) == (Level.OK, False, False)
    assert view.topic == "persistent://public/default/data-shop.orders"


def test_a_source_that_the_worker_gave_up_is_told_with_the_command() -> None:
    """The finding has the worker's reason, and the commands that restart it."""
    view, finding = _source("given-up")
    assert (finding.level, view.is_down) == (Level.FAILURE, True)
    assert "is not running: 0 of 1 instances run (HTTP 503 Service Unavailable)" in finding.text
    assert "pulsar-admin sources restart --name shop" in finding.remedy
    assert "cdc connector watch" in finding.remedy


def test_a_source_without_a_reason_names_the_log_that_has_it() -> None:
    """The worker forgets why an instance ended. Pulsar restarts it within half a minute, so the restart comes last."""
    status = {"numInstances": 1, "numRunning": 0, "instances": [{"instanceId": 0, "status": _ENDED}]}
    [finding] = SourceView.of("shop", recorded("source"), status).findings(None, _NOW_S)
    assert finding.remedy.startswith(
        "wait half a minute: Pulsar restarts an instance that has ended; if it stays down: see"
        " logs/functions/public/default/shop/shop-0.log on the worker (functionsLogDir"
    )
    assert "; then pulsar-admin sources restart --name shop" in finding.remedy


def test_a_wrong_option_that_only_the_cluster_shows_is_to_be_corrected(tmp_path: Path) -> None:
    """The log names the option. The remedy was a restart, which could not help."""
    folder = tmp_path / "public" / "default" / "shop"
    folder.mkdir(parents=True)
    line = "java.lang.IllegalStateException: loadBalancing.localDc: no node is in 'dc1'; the cluster has 'datacenter1'"
    (folder / "shop-0.log").write_text(f"2026-11-29 [main] INFO  starting\n{line}\n\tat Host.open(Host.java:7)\n")
    status = {"numInstances": 1, "numRunning": 0, "instances": [{"instanceId": 0, "status": _ENDED}]}
    [finding] = SourceView.of("shop", recorded("source"), status).findings(tmp_path, _NOW_S)
    assert finding.remedy == "correct its --source-config with pulsar-admin sources update --name shop"


def test_a_source_of_a_table_without_cdc_or_of_none_is_told() -> None:
    """Such a source runs and waits, and the status said that all is well."""
    tables = {"shop.orders": True, "shop.Items": False}
    assert not list(uncaptured(_running("shop.orders"), tables))
    [off, missing, pattern] = uncaptured(_running("shop.orders,shop.Items,Shop.orders,crm.*"), tables)
    assert (off.level, off.text) == (Level.WARNING, "its table shop.Items has cdc = false: changes are not captured")
    assert off.remedy == 'ALTER TABLE shop."Items" WITH cdc = true;'
    text = "waits for its table Shop.orders, which does not exist; did you mean shop.orders?"
    assert (missing.level, missing.text) == (Level.WARNING, text)
    assert pattern.text.startswith("its pattern crm.* matches no table")
    assert not list(uncaptured(_running("shop.none"), {}))
    assert not list(uncaptured(_deployed("", keyspace="shop", table="none"), tables))  # it has another finding


def test_a_pattern_of_a_source_that_selects_no_table_is_told() -> None:
    """Such a source runs, logs nothing, and has no events topic: the status said that all is well."""
    tables = {"shop.orders": True, "shop.Items": False}
    assert not list(uncaptured(_running("shop.*, *.ord?rs"), tables))
    [missing, off] = uncaptured(_running("shop.ordrs*,shop.I*"), tables)
    text = "its pattern shop.ordrs* matches no table; did you mean shop.orders?"
    assert (missing.level, missing.text) == (Level.WARNING, text)
    assert missing.remedy == (
        "correct its option tables with pulsar-admin sources update --name s, unless its table is still to come"
    )
    text = "its pattern shop.I* matches only tables with cdc = false, such as shop.Items: changes are not captured"
    assert (off.level, off.text) == (Level.WARNING, text)
    assert off.remedy == 'ALTER TABLE shop."Items" WITH cdc = true;'
    assert not list(uncaptured(_running("crm.*"), {}))


def test_a_pattern_of_all_tables_is_not_about_cassandras_own() -> None:
    """The remedy was to give system.local CDC, which Cassandra refuses."""
    [off] = uncaptured(_running("*.*"), {"system.local": False, "users.t": False, "cdc_agent_rotation.t": True})
    assert off.remedy == "ALTER TABLE users.t WITH cdc = true;"
    [missing] = uncaptured(_running("*.*"), {"system.local": False})
    assert missing.text.startswith("its pattern *.* matches no table")


@pytest.mark.parametrize(
    ("options", "is_other"),
    [
        ({"contactPoints": "10.1.0.1", "events.topic": "other-events-shop.orders"}, True),
        ({"contactPoints": "10.1.0.1"}, False),
        ({"contactPoints": "10.0.0.1, 10.0.0.2", "events.topic": "events-shop.orders"}, False),
        ({"events.topic": ["events-shop.orders", "cdc-events-shop.orders"]}, False),
    ],
    ids=["another cluster", "our events", "our nodes, the events of DataStax's agent", "our events too"],
)
def test_a_source_of_another_cluster_is_not_looked_for_in_this_one(
    options: Mapping[str, object], is_other: bool
) -> None:
    """Two clusters in one namespace have other prefixes of events topics. The tables of one are not in the other."""
    line = LineConfig.from_mapping({"contactPoints": ["10.0.0.1"]})
    assert is_of_other_cluster(_deployed("", **options), line) is is_other


def _running(names: str) -> SourceView:
    """A source of these tables, whose one instance runs."""
    instance = InstanceView(number=0, is_running=True, error="", restarts=0, last_exception="", last_exception_s=0.0)
    return replace(_deployed("", tables=names), instances=[instance])


def test_a_source_that_somebody_stopped_is_not_down() -> None:
    """The watch does not restart it, and the screen shows the command that starts it."""
    view, finding = _source("stopped")
    assert (view.is_stopped, view.is_down) == (True, False)
    assert finding.remedy == "pulsar-admin sources start --name shop"


def test_a_remedy_names_the_namespace_of_a_source_that_is_not_in_the_default_one() -> None:
    """Otherwise pulsar-admin would look in public/default."""
    config = {**recorded("source"), "tenant": "acme", "namespace": "cdc"}
    [down] = SourceView.of("shop", config, recorded("source-given-up")).findings(None, _NOW_S)
    assert down.remedy.startswith("pulsar-admin sources restart --tenant acme --namespace cdc --name shop, ")
    [stopped] = SourceView.of("shop", config, recorded("source-stopped")).findings(None, _NOW_S)
    assert stopped.remedy == "pulsar-admin sources start --tenant acme --namespace cdc --name shop"


def test_a_source_that_starts_is_not_called_stopped() -> None:
    """Its JVM does not answer yet."""
    view, finding = _source("starting")
    assert (view.is_stopped, view.is_down) == (False, True)
    assert "UNAVAILABLE: io exception" in finding.text
    # A restart by hand is needed only if Pulsar gives the source up.
    assert finding.remedy.startswith(
        "wait half a minute: Pulsar restarts an instance that has ended; if it stays down: "
    )
    assert "pulsar-admin sources restart --name shop" in finding.remedy


def test_a_wrong_option_is_taken_from_the_instances_log(tmp_path: Path) -> None:
    """The worker itself returns no reason. The remedy differs in this case."""
    folder = tmp_path / "public" / "default" / "shop"
    folder.mkdir(parents=True)
    reason = "java.lang.IllegalArgumentException: events.maxWaitng: is not an option of this connector; did you mean events.maxWaiting?"
    (folder / "shop-0.log").write_text(
        "2026-11-23T16:58:35,600+0000 [public/default/shop-0] ERROR JavaInstanceRunnable - Uncaught exception\n"
        f"{reason}\n\tat org.cassandracdc.source.CassandraSource.open(CassandraSource.java:44)\n"
        "2026-11-23T16:58:35,788+0000 [public/default/shop-0] INFO  JavaInstanceRunnable - Closing instance\n"
    )
    _, finding = _source("starting", tmp_path)
    assert reason in finding.text
    assert "sources update" in finding.remedy


def test_an_events_topic_without_its_subscription_has_no_backlog() -> None:
    """Each of the topic's four partitions has a reader."""
    stats = recorded("events-stats")
    found = Backlog.of(stats, "sub", _NOW_S)
    assert found is not None
    assert (found.messages, found.consumers, found.text()) == (0, 4, "nothing waits")
    assert Backlog.of(stats, "other", _NOW_S) is None


def test_what_waits_has_the_age_of_its_oldest_message() -> None:
    """Partitions are added up. A partition without a backlog has no age."""
    stats = recorded("events-stats")
    parts = list(stats["partitions"].values())
    for part, backlog, since_s in zip(parts[:2], (2, 3), (30, 90), strict=True):
        part["subscriptions"]["sub"]["msgBacklog"] = backlog
        part["subscriptions"]["sub"]["earliestMsgPublishTimeInBacklog"] = int((_NOW_S - since_s) * 1000)
    found = Backlog.of(stats, "sub", _NOW_S)
    assert found is not None
    assert found.text() == "5 messages wait, the oldest for 90.0 s"


@pytest.mark.parametrize(
    ("acknowledged_s", "connected_s", "stalled_s"),
    [(100, 200, 25.0), (3, 200, 3.0), (100, 4, 4.0)],
    ids=["nothing since the message came", "another partition goes on", "a reader has just come"],
)
def test_a_table_of_which_nothing_is_acknowledged_stalls(
    acknowledged_s: float, connected_s: float, stalled_s: float
) -> None:
    """Another key or partition that goes on shows that the table is not parked. A new reader gets its time."""
    stats = recorded("events-stats")
    first, second, *_ = (part["subscriptions"]["sub"] for part in stats["partitions"].values())
    first["msgBacklog"], first["earliestMsgPublishTimeInBacklog"] = 1, int((_NOW_S - 25) * 1000)
    second["lastAckedTimestamp"] = int((_NOW_S - acknowledged_s) * 1000)
    connected = datetime.fromtimestamp(_NOW_S - connected_s, UTC).isoformat()
    second["consumers"][0]["connectedSince"] = connected.replace("+00:00", ".000000789Z")
    found = Backlog.of(stats, "sub", _NOW_S)
    assert found is not None
    assert (found.oldest_s, found.stalled_s) == (25.0, pytest.approx(stalled_s))
    for part in stats["partitions"].values():
        part["subscriptions"]["sub"]["consumers"] = []
    unread = Backlog.of(stats, "sub", _NOW_S)
    assert unread is not None
    assert (unread.consumers, unread.stalled_s) == (0, 0.0)


def test_the_lines_own_topics_are_no_tables() -> None:
    """Gaps, agents' claims and schema changes have no dot after the prefix. No keyspace begins like an expiry topic."""
    prefix = "persistent://public/default/cdc-events-"
    names = [
        f"{prefix}{name}" for name in ("shop.orders", "gaps", "schema-changes", "agent-66cdeb07", "expiry-shop.orders")
    ]
    assert events_tables(names, prefix) == {"shop.orders": f"{prefix}shop.orders"}


def _deployed(topic: str, **options: object) -> SourceView:
    return SourceView(name="s", topic=topic, options=options, wanted=1, instances=[], is_stopped=False)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([], []),
        (
            [_deployed("persistent://acme/out/orders", keyspace="shop", table="orders")],
            ["persistent://acme/out/orders"],
        ),
        ([_deployed("persistent://acme/out/parts", keyspace="shop", table="parts")], []),
        ([_deployed("", tables="crm.*, shop.ord?rs", destination="lake-{keyspace}.{table}")], ["lake-shop.orders"]),
        (
            [_deployed("", tables=["shop.orders"], destination="persistent://a/b/{keyspace}-{table}")],
            ["persistent://a/b/shop-orders"],
        ),
        ([_deployed("", tables=["shop.parts", "crm.*"], destination="lake-{keyspace}.{table}")], []),
        ([_deployed("", tables="shop.*")], []),
        # These sources do not start.
        ([_deployed("", tables="shop.*", destination="lake-{table")], []),
        ([_deployed("", tables="shop", destination="lake-{keyspace}.{table}")], []),
        (
            [
                _deployed("", tables="*.*", destination="lake-{keyspace}.{table}"),
                _deployed("persistent://public/default/own", keyspace="shop", table="orders"),
            ],
            ["own", "lake-shop.orders"],
        ),
    ],
)
def test_a_tables_data_topics_are_those_of_the_sources_that_serve_it_and_the_default(
    sources: list[SourceView], expected: list[str]
) -> None:
    """The topics may be in any namespace."""
    assert list(data_topics("shop.orders", sources)) == [
        full_topic_name(each) for each in (*expected, "data-shop.orders")
    ]


@pytest.mark.parametrize(
    ("resolved_ms", "problems", "remedy"),
    [
        (
            None,
            ["node 10.0.0.7: its agent has not published its progress"],
            "start cdc agent on each node that is named",
        ),
        (None, [f"node 10.0.0.7: {DEAD_LETTERS}"], "see dead letters below (CdcDeadLetters"),
        (None, [f"node 10.0.0.7: {NOT_READ}"], "wait until the connector has read them"),
        (
            None,
            [f"node 10.0.0.7: {NOT_READ}", "node 10.0.0.8: its agent has not reported for 40 s"],
            "start cdc agent on each node that is named",
        ),
        (1, ["node 10.0.0.7: 2 segments went: run cdc spark resync"], "do what the reason says (CdcTableIncomplete"),
        (1, [], "wait, or see the lag of agents and sources"),
    ],
)
def test_a_table_that_is_not_complete_has_a_remedy_that_somebody_can_follow(
    resolved_ms: int | None, problems: list[str], remedy: str
) -> None:
    """The remedy also names the runbook section of the alarm that has the same reason."""
    found = _finding(
        "shop.orders", TableResolved(table="shop.orders", resolved_ms=resolved_ms, nodes=(), problems=problems)
    )
    assert found.remedy.startswith(remedy)
    [section] = re.findall(r"(Cdc\w+) in docs/runbook\.md", found.remedy)
    assert f"### {section}\n" in (Path(__file__).parents[3] / "docs" / "runbook.md").read_text(encoding="utf-8")


def test_tables_that_pulsar_does_not_tell_of_have_a_command_as_remedy() -> None:
    """No broker listens at this address. The reason is told once for all tables, with the option of line.yaml."""
    line = LineConfig.from_mapping({"pulsarServiceUrl": "pulsar://127.0.0.1:1", "pulsarAdminUrl": "http://127.0.0.1:1"})
    found = completeness_of(line, ["shop.orders", "shop.items"], [])
    assert isinstance(found, Finding)
    assert (found.level, found.subject) == (Level.WARNING, "2 tables")
    assert found.text.startswith("until when they are complete is not known: Pulsar at http://127.0.0.1:1: ")
    assert found.text.endswith("; start it or check the option pulsarAdminUrl")
    assert found.remedy == "cdc doctor checks Pulsar's rights and state"


def _gap(table: str) -> GapRecord:
    return replace(GAP, table=table, from_ms=None, to_ms=1_795_000_000_000, reason="2 segments went")


def test_open_gaps_are_a_failure_with_their_remedy_and_closed_ones_are_not() -> None:
    """A record that closes a gap is not a gap. Other messages on the topic are reported."""
    orders, parts = _gap("orders"), _gap("parts")
    payloads = [
        encode_gap(each) for each in (orders, parts, orders.closed(1_795_000_002_000, "3 rows were sent again"))
    ]
    found = gap_finding(payloads, 3, "-s sub gaps")
    assert (found.level, found.facts["gaps"]) == (Level.FAILURE, 1)
    assert found.text == (
        "1 gap is open: changes may be lost. shop.parts from the beginning to 2026-11-18 11:06 UTC (2 segments went)"
    )
    assert found.remedy.startswith("`cdc spark resync` ")
    # Agents wait for records that close the gaps. They do not see acknowledgements.
    assert (
        f"`pulsar-admin topics clear-backlog -s sub gaps`, and run `cdc agent resume-progress` on node {UUID(int=1)}"
        in found.remedy
    )
    payloads.append(encode_gap(parts.closed(1_795_000_003_000, "the table was dropped")))
    assert gap_finding(payloads, 4, "-s sub gaps") == ok("", "none is open, 2 are closed", gaps=0)
    foreign = gap_finding([*payloads, b"\x01"], 5, "-s sub gaps")
    assert (foreign.level, foreign.facts["gaps"]) == (Level.WARNING, 0)
    assert foreign.text.endswith("messages that are no gap records: 1")
    assert foreign.remedy.endswith("`pulsar-admin topics clear-backlog -s sub gaps`")


@pytest.mark.parametrize("has_gap", [False, True])
def test_while_gap_records_are_unread_it_is_not_known_whether_one_is_open(has_gap: bool) -> None:
    """An operator who acknowledges them then would lose the records of open gaps."""
    payloads = [encode_gap(_gap("parts"))] if has_gap else []
    found = gap_finding([*payloads, b"\x01"], 20_000, "-s sub gaps")
    assert (found.level, "gaps" in found.facts) == (Level.FAILURE, False)
    read = f"of 20,000 messages {len(payloads) + 1} were read; messages that are no gap records: 1"
    assert found.text.startswith(f"whether a gap is open is not known: {read}")
    assert ("shop.parts from the beginning" in found.text) == has_gap
    assert "`cdc spark resync`" in found.remedy
    assert "clear-backlog" not in found.remedy


def _agent(age_s: float, place: str = "/nowhere", **changed: object) -> list[Finding]:
    content = {**recorded("agent-status"), **changed}
    now_s = datetime.fromisoformat(content["time"]).timestamp() + age_s
    return list(AgentStatus(place, content).findings(now_s))


def test_an_agent_that_speaks_is_well() -> None:
    """The finding has the lag."""
    [finding] = _agent(1)
    assert (finding.level, finding.text) == (Level.OK, "runs, lag 0 B, 0.0 s; 0 events/s")


def test_of_an_agent_that_is_silent_nothing_else_is_told(tmp_path: Path) -> None:
    """The last status was good, but another process may have its process id by now."""
    [finding] = _agent(600, str(tmp_path), pid=1)
    assert (finding.level, finding.text) == (
        Level.FAILURE,
        "does not run; process 1 wrote its last status 10 min ago",
    )
    assert "lag" not in finding.text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            "/nowhere",
            "does not run; process 4711 wrote its last status before the clock was set back (it is 60 min ahead)",
        ),
        (
            "http://127.0.0.1:9465",
            "answers, but wrote no status since the clock was set back (the last one is 60 min ahead) by the clock of this"
            " machine, which may differ",
        ),
    ],
)
def test_a_status_from_the_future_is_old(place: str, text: str) -> None:
    """The agent would count as running until the clock reaches that time. A difference of a few seconds is accepted."""
    [finding] = _agent(-3_600, place, pid=4711)
    assert (finding.level, finding.text) == (Level.FAILURE, text)
    [finding] = _agent(-5, place)
    assert (finding.level, finding.text) == (Level.OK, "runs, lag 0 B, 0.0 s; 0 events/s")


@pytest.mark.skipif(process_space() is None, reason="this system does not say whose process ids it has")
@pytest.mark.parametrize(
    ("space", "level"), [(process_space(), Level.FAILURE), ("another machine", Level.OK), (None, Level.OK)]
)
def test_an_agent_that_has_ended_does_not_run_however_new_its_status_is(
    tmp_path: Path, space: str | None, level: Level
) -> None:
    """The process id is checked only in its own process space. The processes of a container are not visible here."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    [finding] = _agent(1, str(tmp_path), pid=ended.pid, process_space=space)
    assert finding.level is level
    says_so = f"does not run; process {ended.pid} wrote its last status 1.0 s ago" in finding.text
    assert says_so == (level is Level.FAILURE)
    [answers] = _agent(1, "http://127.0.0.1:9465", pid=ended.pid, process_space=space)
    assert answers.level is Level.OK


@pytest.mark.parametrize(
    ("ago_s", "last"),
    [
        (3.0, ", the last one 3.0 s before this status"),
        (59.0, ", the last one 59.0 s before this status"),
        (61.0, None),
        (None, ""),
    ],
)
def test_failed_writes_are_told_until_nothing_has_failed_for_a_minute(ago_s: float | None, last: str | None) -> None:
    """The counter stays until the agent's next start. Earlier versions do not report the time of the last failure."""
    status = recorded("agent-status")
    metrics = {**status["metrics"], "write_failures": 41}
    if ago_s is not None:
        metrics["last_write_failure_timestamp_seconds"] = datetime.fromisoformat(status["time"]).timestamp() - ago_s
    found = [(each.level, each.text) for each in _agent(1, metrics=metrics) if each.level is not Level.OK]
    text = f"41 writes to its working directory failed since its start{last}"
    assert found == ([] if last is None else [(Level.WARNING, text)])


def test_finished_segments_that_stay_are_told_with_the_right_remedy() -> None:
    """cdc_raw fills up, and the remedy was to see why events are not sent. They were."""
    metrics = {**recorded("agent-status")["metrics"], "segments_not_deleted": 3, "archive_failures": 2}
    [deleted, archived] = _agent(1, metrics=metrics)
    assert (deleted.level, deleted.text) == (
        Level.FAILURE,
        "3 finished segments cannot be deleted, so cdc_raw fills up",
    )
    assert deleted.remedy == "its log has the reason; let its user write in cdc_raw (docs/install.md)"
    assert (archived.level, archived.text) == (
        Level.WARNING,
        "2 times since its start a finished segment could not be copied to archiveUrl",
    )


def test_the_folder_of_finished_segments_that_stay_is_named() -> None:
    """The remedy named cdc_raw, also for segments in spillDir, which may be on another disk."""
    metrics = {
        **recorded("agent-status")["metrics"],
        "segments_not_deleted": 2,
        "segments_not_deleted_elsewhere": 2,
    }
    [spilled] = _agent(1, metrics=metrics)
    text = "2 finished segments in spillDir or reprocess/ cannot be deleted, so that disk fills up"
    assert (spilled.level, spilled.text) == (Level.FAILURE, text)
    assert (
        spilled.remedy == "its log has the reason and the files; let its user write in their folder (docs/install.md)"
    )
    [raw, spilled] = _agent(1, metrics=metrics | {"segments_not_deleted": 5})
    assert raw.text == "3 finished segments cannot be deleted, so cdc_raw fills up"
    assert spilled.text == text
    [spilled] = _agent(1, metrics=metrics | {"segments_not_deleted": 0})
    assert spilled.text == text


def test_two_troubles_of_an_agent_are_two_findings() -> None:
    """Each has its own remedy, and no finding says that the agent is well."""
    metrics = {**recorded("agent-status")["metrics"], "segments_gone_unread": 3}
    stopped = {"shop.orders": {"time_ms": 1, "stopped": "3 segments disappeared"}}
    found = _agent(
        1, cassandra_problem="Cassandra at 127.0.0.1 port 9042: refused", metrics=metrics, published_until=stopped
    )
    assert [each.level for each in found] == [Level.FAILURE, Level.FAILURE]
    assert all(each.remedy for each in found)


def test_tables_with_the_same_problem_are_counted() -> None:
    """While Pulsar is away, each table has the same reason, apart from the name of its topic."""

    def topic(problem: str | None) -> dict[str, object]:
        return {"is_usable": False, "problem": problem, "waiting_events": 2, "held_bytes": 512}

    away = "no producer for persistent://public/default/cdc-events-{}-partition-0: ConnectError"
    topics = {name: topic(away.format(name)) for name in ("shop.a", "shop.b", "shop.c", "shop.d")}
    found = _agent(1, topics={**topics, "shop.e": topic("a quota is reached"), "shop.f": topic(None)})
    assert [(each.level, each.text) for each in found if "cannot be published" in each.text] == [
        (
            Level.FAILURE,
            f"4 tables (shop.a, shop.b, shop.c, ...) cannot be published ({away.format('shop.a')}); 8 events wait, 2.0 KiB are"
            " held on disk",
        ),
        (Level.FAILURE, "shop.e cannot be published (a quota is reached); 2 events wait, 512 B are held on disk"),
        (
            Level.WARNING,
            "shop.f cannot be published (its topic is being opened); 2 events wait, 512 B are held on disk",
        ),
    ]


@pytest.mark.parametrize("name", ["segments_gone_unread", "segments_unreadable", "corrupt_entries"])
def test_a_loss_is_a_failure_until_no_table_stands_still(name: str) -> None:
    """The counters stay until the agent's next start, long after the gaps were closed."""
    metrics = {**recorded("agent-status")["metrics"], name: 3}
    tables = {"shop.parts": {"time_ms": 1, "stopped": None}, "shop.orders": {"time_ms": None, "stopped": "lost"}}
    [open_one] = _agent(1, metrics=metrics, published_until=tables)
    assert (open_one.level, "next start" in open_one.remedy) == (Level.FAILURE, False)
    tables["shop.orders"] = {"time_ms": 1, "stopped": None}
    [well, closed] = _agent(1, metrics=metrics, published_until=tables)
    assert (well.level, closed.level) == (Level.OK, Level.WARNING)
    assert "since its start" in closed.text
    assert closed.remedy == f"{open_one.remedy}; the count remains until the agent's next start"
    for unknown in ({"published_until": {}}, {}):  # progressIntervalMs is 0
        [unknown_one] = _agent(1, metrics=metrics, **unknown)
        assert unknown_one == open_one


def test_remedies_of_an_agent_of_another_machine_name_no_folder_here() -> None:
    """The place of such an agent is a URL, not a path."""
    metrics = {**recorded("agent-status")["metrics"], "parked": 3, "write_failures": 2}
    url = "http://10.0.0.1:9465"
    remedies = [each.remedy for each in _agent(1, url, metrics=metrics) if each.level is not Level.OK]
    assert len(remedies) == 2
    assert all("on that machine" in each and url not in each for each in remedies)


def test_an_agent_may_be_asked_over_http() -> None:
    """The answer equals the status file. An address without this page is reported."""
    body = (HEALTH / "agent-status.json").read_bytes()
    endpoint = HttpEndpoint("127.0.0.1", 0, {"/status": lambda: (True, body, "application/json")})
    other = HttpEndpoint("127.0.0.1", 0, {"/readyz": lambda: (True, b"", "text/plain")})
    endpoint.start()
    other.start()
    try:
        assert AgentStatus.of_url(f"http://{endpoint.address}/").content == recorded("agent-status")
        with pytest.raises(NoStatusError, match="has no /status"):
            AgentStatus.of_url(f"http://{other.address}")
    finally:
        endpoint.stop()
        other.stop()
    with pytest.raises(NoStatusError, match="does not answer"):
        AgentStatus.of_url(f"http://{endpoint.address}")


def test_an_agent_that_runs_is_not_to_be_started(tmp_path: Path) -> None:
    """The remedy for each agent without a status was to start it."""
    waiting = HttpEndpoint("127.0.0.1", 0, {"/readyz": lambda: (False, b"", "text/plain")})
    starting = HttpEndpoint("127.0.0.1", 0, {"/status": lambda: (False, b"{}\n", "application/json")})
    foreign = HttpEndpoint("127.0.0.1", 0, {"/status": lambda: (True, b"[]", "application/json")})
    (tmp_path / "status.json").write_text("[]")
    endpoints = (waiting, starting, foreign)
    for each in endpoints:
        each.start()
    try:
        places = [*(f"http://{each.address}" for each in endpoints), str(tmp_path), str(tmp_path / "none")]
        found, _ = agents(LineConfig.from_mapping({"agents": places}), _NOW_S)
    finally:
        for each in endpoints:
            each.stop()
    remedies = [found_of.remedy for place in places for found_of in found if found_of.subject == place]
    assert remedies == [
        f"see {places[0]}/readyz and its log: they say what it waits for",
        f"wait some seconds; {places[1]}/readyz says what it waits for",
        "correct this URL under agents in line.yaml",
        "correct agents in line.yaml; if it is the agent's working directory, see the agent's log",
        "start it, or correct agents in line.yaml",
    ]


def test_a_mirror_is_judged_by_the_ends_of_its_topic() -> None:
    """A long lag is a warning. Every mirror has a short lag, so that is not reported."""
    state = {"epoch": 7, "clock_s": _NOW_S - 5, "positions": {"a": [5, 9, -1], "b": [6, 2, 0]}}
    ends = {"a": (5, 9), "b": (6, 3)}
    assert judged_mirror("/m", state, ends.get, _NOW_S).level is Level.OK
    late = judged_mirror("/m", state, ends.get, _NOW_S + 3600)
    assert (late.level, late.text) == (
        Level.WARNING,
        "lacks records of 1 of 2 topic partitions; its last micro-batch was 60 min ago",
    )
    assert judged_mirror("/m", state, {"a": (5, 9), "b": (6, 2)}.get, _NOW_S + 3600).level is Level.OK


def test_a_mirror_that_is_behind_does_not_count_as_busy_until_a_clock_catches_up() -> None:
    """The clock was set back, so the time of the last micro-batch is in the future."""
    state = {"epoch": 7, "clock_s": _NOW_S + 3600, "positions": {"a": [5, 9]}}
    found = judged_mirror("/m", state, {"a": (5, 10)}.get, _NOW_S)
    assert (found.level, found.text) == (
        Level.WARNING,
        "lacks records of 1 of 1 topic partitions; its last micro-batch was 60 min ahead of the clock of this machine",
    )


@pytest.mark.parametrize("stored", ["[]", "{}", "null", '{"epoch": 1, "positions": {"a": 5}}', '{"epoch'])
def test_a_mirror_whose_state_is_not_understood_is_a_failure(stored: str, tmp_path: Path) -> None:
    """It is one finding, and other findings are still shown. Commands of Spark then do not know the table format."""
    (tmp_path / "applied").mkdir()
    (tmp_path / "applied" / "1.json").write_text(stored)
    with PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": "http://127.0.0.1:9"})) as service:
        found = mirror_finding(service, str(tmp_path), _NOW_S)
    assert found.level is Level.FAILURE
    assert "cannot be read (" in found.text or "is damaged, or a later version wrote it (" in found.text
    assert isinstance(may_be_iceberg(str(tmp_path)), bool)


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ({}, "has every record, micro-batch 7"),
        ({"may_lack": None}, "has every record, micro-batch 7"),
        ({"may_lack": "why"}, "is at its topic's end, micro-batch 7, but may lack records: why"),
    ],
    ids=["of an earlier version", "all of them", "not from the beginning"],
)
def test_a_mirror_that_may_lack_records_is_not_said_to_have_all(stored: Mapping[str, object], text: str) -> None:
    """The user asked for that, so it is not a warning."""
    state = {"epoch": 7, "clock_s": _NOW_S - 5, "positions": {"a": [5, 9, -1]}, **stored}
    found = judged_mirror("/m", state, {"a": (5, 9)}.get, _NOW_S)
    assert (found.level, found.text) == (Level.OK, text)


def test_a_mirror_whose_topic_is_gone_has_not_every_record() -> None:
    """The same holds if only one of several partitions is gone."""
    state = {"epoch": 7, "clock_s": _NOW_S - 5, "positions": {"a": [5, 9, -1], "b": [6, 2, 0]}}
    gone = judged_mirror("/m", state, {"b": (6, 2)}.get, _NOW_S)
    assert (gone.level, gone.text) == (Level.FAILURE, "its topic does not exist: a")
    both = judged_mirror("/m", state, {}.get, _NOW_S)
    assert (both.level, both.text) == (Level.FAILURE, "its topic does not exist: a, and 1 partitions more")


def test_a_mirror_lacks_the_records_of_partitions_that_were_added() -> None:
    """An added partition without records lacks nothing."""
    state = {"epoch": 7, "clock_s": _NOW_S - 5, "positions": {"a": [5, 9, -1]}}
    ends = {"a": (5, 9), "b": (6, 0), "c": (7, -1)}
    late = judged_mirror("/m", state, ends.get, _NOW_S + 3600, ["a", "b", "c"])
    assert (late.level, late.facts["partitions_behind"]) == (Level.WARNING, 1)
    assert late.text.startswith("lacks records of 1 of 3 topic partitions")
    well = judged_mirror("/m", state, {**ends, "b": (6, -1)}.get, _NOW_S + 3600, ["a", "b", "c"])
    assert well.level is Level.OK


_SECTIONS = [
    Section(title="servers", findings=[ok("Cassandra", "1 node, 5.0.9"), ok("Pulsar", "answers")]),
    Section(
        title="sources",
        findings=[
            failure("shop", "is not running: 0 of 1 instances run (HTTP 503 Service Unavailable)", "restart it, " * 12),
            warning("/a/very/long/path/of/a/working/directory/that/fits/no/column", "is late", "wait"),
        ],
    ),
]


@pytest.mark.parametrize("width", [34, 48, 80, 200])
def test_the_screen_fits_every_width(width: int) -> None:
    """Words are wrapped between lines, and cut only if they are longer than a line. Every remedy is shown."""
    console = Console(width=width, record=True, file=io.StringIO(), soft_wrap=True)
    print_sections(console, _SECTIONS)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    said = " ".join(" ".join(lines).split())
    assert "HTTP 503 Service Unavailable)" in said
    assert said.count("restart it,") == 12
    assert "-> wait" in said


def test_the_verdict_counts() -> None:
    """Only a failure counts as trouble, not a warning."""
    every = [each for section in _SECTIONS for each in section.findings]
    assert verdict(every).plain == "TROUBLE: 1 failure, 1 warning"
    assert verdict([ok("a", "b"), warning("a", "b", "c")]).plain == "it works: 1 warning"
    assert level_of([]) is Level.OK


def test_every_mistake_of_a_line_is_told_at_once(tmp_path: Path) -> None:
    """A misspelled name is reported with the right one, and a wrong value with the allowed ones."""
    path = tmp_path / "line.yaml"
    path.write_text("contactPoint: 10.0.0.1\npulsarAdminUrl: localhost\nport: 0\n")
    with pytest.raises(ConfigError) as error:
        LineConfig.load(path)
    assert sorted(problem.option for problem in error.value.problems) == ["contactPoint", "port", "pulsarAdminUrl"]
    assert "did you mean contactPoints?" in str(error.value)


@pytest.mark.parametrize("text", ["password: 2026-99-99\n", "a: [\n", "- a\n"])
def test_a_line_that_is_no_yaml_is_reported_in_one_line(text: str, tmp_path: Path) -> None:
    """YAML parses text that looks like a date, even if that date does not exist."""
    path = tmp_path / "line.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^--config: {path} ") as error:
        LineConfig.load(path)
    assert "\n" not in str(error.value)
    assert "2026-99" not in str(error.value)  # it may be a password
    assert admin_url_of(path) is None


def test_a_wanted_table_without_cdc_is_named_however_many_others_there_are() -> None:
    """The list of other tables is cut, and says how many are left out."""
    rows = [{"keyspace_name": "a", "table_name": f"t{number:02d}", "cdc": False} for number in range(30)]
    schema = {"tables": [*rows, {"keyspace_name": "z", "table_name": "Late", "cdc": False}]}
    [_, late] = captured_tables(schema, ["z.*"])
    assert (late.level, late.subject) == (Level.FAILURE, "z.Late")
    assert late.remedy == 'ALTER TABLE z."Late" WITH cdc = true;'
    [_, *others, rest] = captured_tables(schema, [])
    assert [each.level for each in others] == [Level.WARNING] * 20
    assert "11 tables more without cdc" in rest.text


def test_the_status_names_the_wanted_tables_that_are_not_captured() -> None:
    """Only the doctor did. Tables of the cluster itself are not wanted, and tables that are not known are not missing."""
    tables = {"shop.orders": True, "shop.Items": False, "crm.log": False, "system.peers": False}
    [off, missing] = not_captured(tables, ["shop.*", "system.*"])
    assert (off.level, off.subject, off.text) == (
        Level.FAILURE,
        "shop.Items",
        "has cdc = false: its changes are not captured",
    )
    assert off.remedy == 'ALTER TABLE shop."Items" WITH cdc = true;'
    assert (missing.subject, missing.text) == ("system.*", "no table matches this pattern")
    assert not list(not_captured(tables, []))
    assert not list(not_captured({}, ["shop.*"]))


def test_a_wanted_table_is_missing_also_where_no_user_has_a_table() -> None:
    """A cluster that was just made has only Cassandra's own tables: the status said that all is well."""
    [missing] = not_captured({"system.local": False}, ["shop.*"])
    assert (missing.subject, missing.text) == ("shop.*", "no table matches this pattern")
    schema = {"tables": [{"keyspace_name": "system", "table_name": "local", "cdc": False}]}
    assert missing in list(captured_tables(schema, ["shop.*"]))


def test_a_users_keyspace_may_begin_like_those_of_cassandra() -> None:
    """The status and the doctor said that no table matches the pattern."""
    tables = {"system_shop.orders": True, "shop.orders": True, "system.peers": False}
    assert not list(not_captured(tables, ["system_shop.*"]))
    assert not list(uncaptured(_running("system_shop.*"), tables))


def test_the_doctor_does_not_pass_an_agent_that_is_not_there(tmp_path: Path) -> None:
    """An agent with a URL runs on another machine. Any other place is a path on this machine."""
    assert list(agent_machine("http://127.0.0.1:9465")) == []
    [folder] = agent_machine(str(tmp_path))
    assert folder.subject == str(tmp_path)
    [mistyped] = agent_machine(str(tmp_path / "agnet.yaml"))
    assert (mistyped.level, mistyped.remedy) == (Level.FAILURE, "start it, or correct agents in line.yaml")
    unreadable = str(tmp_path / ("a" * 300))
    [refused] = agent_machine(unreadable)
    assert (refused.level, refused.text) == (Level.FAILURE, "cannot be read (File name too long)")
    [silent], _ = agents(LineConfig.from_mapping({"agents": [unreadable]}), _NOW_S)
    assert (silent.level, "File name too long" in silent.text) == (Level.FAILURE, True)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second disk")
def test_the_doctor_looks_at_the_disk_of_cdc_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to look at the disk of the working directory alone. A full disk stops Cassandra's commit log."""
    with TemporaryDirectory(dir="/dev/shm") as raw:
        (tmp_path / "work").mkdir()
        (tmp_path / "agent.yaml").write_text(f"cdcRawDirectory: {raw}\ncdcWorkingDir: {tmp_path}/work\n")

        def disks() -> list[tuple[Level, str, str]]:
            found = agent_machine(str(tmp_path / "agent.yaml"))
            return [(each.level, each.subject, each.remedy) for each in found if "free on its disk" in each.text]

        assert disks() == [(Level.OK, f"{tmp_path}/work", ""), (Level.OK, raw, "")]
        monkeypatch.setattr("cdc.health.doctor._LITTLE_DISK", 1 << 60)
        assert disks() == [
            (Level.WARNING, f"{tmp_path}/work", "make room: positions and held events go there"),
            (Level.WARNING, raw, "make room: without it, Cassandra can write no commit log, and refuses writes"),
        ]


def test_the_doctor_goes_on_behind_a_working_directory_that_it_may_not_look_at() -> None:
    """It used to end there, without findings about the servers."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "cdc_raw").mkdir()
        (folder / "cdc_raw").chmod(0o777)
        (folder / "closed").mkdir(mode=0)
        options = f"cdcRawDirectory: {folder}/cdc_raw\ncdcWorkingDir: {folder}/closed/work\n"
        (folder / "agent.yaml").write_text(options)
        found = as_another_user(lambda: [each.text for each in agent_machine(str(folder / "agent.yaml"))])
        (folder / "closed").chmod(0o700)
    assert f"{folder}/closed/work cannot be read (Permission denied)" in found


def test_the_doctor_goes_on_behind_a_cdc_raw_of_the_node_that_it_may_not_look_at() -> None:
    """The agent's user may have the folder under another name, and no right to look below /var/lib/cassandra."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "cdc_raw").mkdir()
        (folder / "cdc_raw").chmod(0o777)
        (folder / "closed" / "cdc_raw").mkdir(parents=True)
        (folder / "closed").chmod(0)
        node = {"cdc_enabled": True, "cdc_raw_directory": f"{folder}/closed/cdc_raw", "cdc_total_space_in_mb": 64}
        (folder / "cassandra.yaml").write_text(json.dumps(node))
        (folder / "agent.yaml").write_text(
            f"cassandraYaml: {folder}/cassandra.yaml\ncdcRawDirectory: {folder}/cdc_raw\ncdcWorkingDir: {folder}/work\n"
            "port: 1\n"
        )
        found = as_another_user(lambda: [each.text for each in agent_machine(str(folder / "agent.yaml"))])
        (folder / "closed").chmod(0o700)
    assert "can be read and written, has 0 B of 64.0 MiB" in found


def test_a_keyspace_whose_writes_are_not_logged_is_named_with_the_statement() -> None:
    """Only keyspaces of tables with CDC are checked."""
    keyspaces = [{"keyspace_name": name, "durable_writes": name == "safe"} for name in ("safe", "Fast", "other")]
    tables = [{"keyspace_name": name, "table_name": "t", "cdc": name != "other"} for name in ("safe", "Fast", "other")]
    found = list(captured_tables({"keyspaces": keyspaces, "tables": tables}, []))
    [failed] = [each for each in found if each.level is Level.FAILURE]
    assert failed.subject == "Fast"
    assert failed.remedy.startswith('ALTER KEYSPACE "Fast" WITH durable_writes = true;')


def test_a_secret_of_a_line_is_not_printed(tmp_path: Path) -> None:
    """The secret may be in a file."""
    (tmp_path / "token").write_text("token:sesame\n")
    config = LineConfig.from_mapping(
        {"pulsarAuthPluginClassName": "token", "pulsarAuthParamsFile": str(tmp_path / "token")}
    )
    assert config.pulsar_options.auth_params == "token:sesame"
    assert "sesame" not in repr(config)
    assert "sesame" not in repr(config.pulsar_options)


def test_a_row_of_megabytes_does_not_hide_the_other_findings() -> None:
    """`cdc trace` printed 700,000 lines for a row of 6 MB. The end, which has the times, is shown as well."""
    screen = Console(file=io.StringIO(), width=80)
    print_sections(screen, [Section(title="row", findings=[ok("", f"{'0a' * 3_000_000}; written at noon")])])
    assert isinstance(screen.file, io.StringIO)
    printed = screen.file.getvalue()
    assert len(printed.splitlines()) < 30
    assert "5,998,717 characters left out; --json has them" in " ".join(printed.split())
    assert "; written at noon" in " ".join(printed.split())


def test_the_doctor_measures_cdc_raw_by_the_nodes_own_limit(tmp_path: Path) -> None:
    """Without cdcTotalSpaceBytes it took Cassandra's default of 4 GiB. The node is down, so cassandra.yaml counts."""
    (tmp_path / "cdc_raw").mkdir()
    (tmp_path / "cdc_raw" / "CommitLog-7-1.log").write_bytes(b"0" * 1024 * 1024)
    node = {"cdc_enabled": True, "cdc_raw_directory": str(tmp_path / "cdc_raw"), "cdc_total_space_in_mb": 64}
    (tmp_path / "cassandra.yaml").write_text(json.dumps(node))
    options = f"cassandraYaml: {tmp_path}/cassandra.yaml\ncdcWorkingDir: {tmp_path}/work\nport: 1\n"
    (tmp_path / "agent.yaml").write_text(options)
    found = list(agent_machine(str(tmp_path / "agent.yaml")))
    assert found[0] == ok(str(tmp_path / "cdc_raw"), "can be read and written, has 1.0 MiB of 64.0 MiB")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "agent.yaml").write_text(f"{options}cdcRawDirectory: {other}\n")
    [elsewhere, *_] = agent_machine(str(tmp_path / "agent.yaml"))
    assert (elsewhere.level, elsewhere.text) == (
        Level.WARNING,
        f"the node writes to {tmp_path}/cdc_raw, and the agent reads {other}",
    )
