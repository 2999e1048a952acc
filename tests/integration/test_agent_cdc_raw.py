"""`cdc_raw` does not fill up while Pulsar is away, backlogs arrive completely, and full disks lose nothing.

These tests stop servers and need a small `cdc_total_space`, so they have their own servers.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pulsar
import pytest
from cassandra import WriteFailure
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.protocol import CDCWriteException
from click.testing import CliRunner

from cdc.agent_process import AgentProcess
from cdc.main import cli
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.configuration.config import AgentConfig
from change_agent.positions.offsets import parse_positions
from change_agent.raw_folder import check_raw_folder
from schemas.errors import ConfigError
from schemas.gap_record import GapRecord, decode_gap, gaps_topic
from schemas.topics import events_topic
from tests.fixtures.agent import TopicOf
from tests.servers.cassandra_session import cluster_of, make_keyspace
from tests.topics.agent_table import log_from_now
from tests.topics.client import client_of
from tests.topics.events_topic import EventsTopic, TopicEvent, partitions_of, wait_until

_MIB = 1024 * 1024
_TOTAL_SPACE_MB = 12
# This leaves room for 2 MiB of writes and for the segment that Cassandra makes in advance. The guard leaves less than
# this there.
_ENOUGH_BYTES = 8 * _MIB
# A node without room in `cdc_raw` answers with the first error as a coordinator and with the second one as a replica.
_REFUSED = (CDCWriteException, WriteFailure)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def servers() -> Iterator[Sandbox]:
    """A Cassandra node whose `cdc_raw` is small, and a Pulsar that these tests may stop."""
    options = SandboxOptions(
        commitlog_sync_ms=100,
        functions_runtime="thread",
        cassandra_settings={"cdc_total_space_in_mb": _TOTAL_SPACE_MB},
    )
    with Sandbox(options) as running:
        yield running


@pytest.fixture
def session(running_servers: Sandbox) -> Iterator[Session]:
    """A session with the node; made anew for each test because the node may have been restarted."""
    with cluster_of(running_servers.node) as cluster:
        yield cluster.connect()


@pytest.fixture
def table(session: Session) -> str:
    """A table of the test's own, `keyspace.t`."""
    keyspace = f"raw_{next(_numbers)}"
    make_keyspace(session, keyspace)
    session.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, v text) WITH cdc = true")
    return f"{keyspace}.t"


@pytest.fixture
def agent(servers: Sandbox, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent of the test's own, not running at first."""
    process = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path, shutdownTimeoutMs=1_000)
    yield process
    process.stop()


def _write(session: Session, table: str, rows: range, size: int = 10) -> None:
    """Write rows; those that Cassandra refuses because `cdc_raw` is full are written again: there may be room later."""
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, ?)")
    left = list(rows)

    def are_written() -> bool:
        values = [(pk, "x" * size) for pk in left]
        results = execute_concurrent_with_args(session, insert, values, concurrency=128, raise_on_first_error=False)
        failed = [(pk, error) for pk, (is_written, error) in zip(left, results, strict=True) if not is_written]
        for _, error in failed:
            if not isinstance(error, _REFUSED):
                raise error
        left[:] = [pk for pk, _ in failed]
        return not left

    wait_until(are_written, f"Cassandra takes all rows of {table}")


def _keys(topic: EventsTopic) -> set[int]:
    return {int.from_bytes(each.event.partition_key, "big", signed=True) for each in topic.events}


def _raw_bytes(servers: Sandbox) -> int:
    """Size of the files in `cdc_raw`, as Cassandra counts it. A file may be deleted meanwhile."""
    total = 0
    for path in servers.node.cdc_raw.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _wait_for_room(servers: Sandbox, at_most_bytes: int = _ENOUGH_BYTES) -> None:
    """Wait until the agent has made room in `cdc_raw`, which it must do with and without Pulsar."""
    wait_until(lambda: _raw_bytes(servers) <= at_most_bytes, "the agent makes room")


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_while_pulsar_is_away_writes_go_on_and_everything_arrives_afterwards(
    servers: Sandbox, session: Session, table: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Twice the size of `cdc_raw` is written without Pulsar: finished segments move to the spill folder, and memory
    stays bounded."""
    agent.configure(
        {
            "cdcWorkingDir": str(agent.working_dir),
            "httpPort": 0,
            "cdcRawDirectory": str(servers.node.cdc_raw),
            "contactPoints": servers.node.address,
            "port": servers.node.native_port,
            "pulsarServiceUrl": servers.pulsar.service_url,
            "pulsarAdminUrl": servers.pulsar.admin_url,
            "maxInflightEvents": 1_000,
        }
    )
    servers.pulsar.stop()
    agent.start()
    wait_until(lambda: agent.metric("cdc_raw_limit_bytes") == _TOTAL_SPACE_MB * _MIB, "the agent knows the limit")
    for start in range(0, 6_000, 500):
        _wait_for_room(servers)
        _write(session, table, range(start, start + 500), size=4_000)
    wait_until(lambda: agent.metric("segments_spilled") >= 10, "segments are off-loaded")
    assert agent.metric("inflight_events") <= 1_000
    assert agent.metric("cdc_raw_limit_bytes") == _TOTAL_SPACE_MB * _MIB
    assert agent.metric("cdc_raw_bytes") < _TOTAL_SPACE_MB * _MIB
    # The agent counts these bytes before a round of moves, and the segments within it.
    wait_until(lambda: agent.metric("spilled_bytes") >= 10 * _MIB, "their bytes are counted")
    assert _rss_bytes(agent.pid) < 200 * _MIB
    assert "finished segments that are not sent yet are moved to" in agent.log.read_text()
    servers.pulsar.start()
    topic = topic_of(table)
    topic.wait_for_rows(6_000)
    assert _keys(topic) == set(range(6_000))
    wait_until(lambda: not list((agent.working_dir / "spill").iterdir()), "the spill folder is empty")
    for partition in range(4):
        places = [each.place[1:] for each in topic.events if each.partition == partition]
        assert places == sorted(places)
    assert agent.metric("segments_gone_unread") == agent.metric("segments_unreadable") == 0


def _block_writes(servers: Sandbox, block: bool) -> None:
    servers.node._ask(
        {
            "type": "write",
            "mbean": "org.apache.cassandra.db:type=Commitlog",
            "attribute": "CDCBlockWrites",
            "value": block,
        }
    )


def test_segments_that_cassandra_removed_unread_are_told_as_a_gap(
    servers: Sandbox, session: Session, table: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """While the agent is down, Cassandra removes the oldest segments in place of blocking writes: a gap is reported."""
    agent.start()
    _write(session, table, range(100))
    topic_of(table).wait_for(100)
    assert agent.stop() == 0, agent.log_tail()
    before_ms = time.time() * 1_000
    _block_writes(servers, block=False)
    try:
        _write(session, table, range(1_000, 9_000), size=2_000)
    finally:
        _block_writes(servers, block=True)
    _write(session, table, range(50_000, 50_010))
    agent.start()
    topic = topic_of(table)
    wait_until(lambda: bool(topic.read()) and set(range(50_000, 50_010)) <= _keys(topic), "the newest rows arrive")
    lost = set(range(1_000, 9_000)) - _keys(topic)
    assert len(lost) > 1_000
    wait_until(lambda: agent.metric("segments_gone_unread") >= 1, "the gap in the metrics")
    assert "went from cdc_raw before they were read to their end" in agent.log.read_text()
    wait_until(lambda: bool(_gaps(servers, table)), "the gap is told")
    [gap] = _gaps(servers, table)
    assert str(gap.node_id) == agent.status()["node_id"]
    assert gap.from_ms is not None and gap.from_ms < before_ms < gap.to_ms
    # The next test writes before its agent runs.
    _wait_for_room(servers, _ENOUGH_BYTES // 2)


def _gaps(servers: Sandbox, table: str) -> list[GapRecord]:
    """The table's records on the gaps topic, once that topic has any record."""
    with client_of(servers.pulsar.service_url) as client:
        wait_until(lambda: partitions_of(servers.pulsar.admin_url, gaps_topic()) != [], "the gaps topic exists")
        reader = client.create_reader(f"{gaps_topic()}-partition-0", pulsar.MessageId.earliest)
        found = [decode_gap(reader.read_next(timeout_millis=60_000).data())]
        while reader.has_message_available():
            found.append(decode_gap(reader.read_next(timeout_millis=60_000).data()))
        return [each for each in found if f"{each.keyspace}.{each.table}" == table]


@pytest.mark.extended
def test_a_backlog_arrives_whole_whichever_server_was_away(
    servers: Sandbox, session: Session, table: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """All rows arrive that are written before the agent's first start, while it is down, and while Pulsar is away."""
    part = 30_000
    total, step = part * 10 // 3, part // 3
    _write(session, table, range(part))
    servers.node.stop()
    agent.start()
    servers.node.start()
    topic = topic_of(table)
    with cluster_of(servers.node) as cluster:
        again = cluster.connect()
        topic.wait_for_rows(part)
        _wait_for_room(servers, _ENOUGH_BYTES // 2)
        assert agent.stop() == 0, agent.log_tail()
        _write(again, table, range(part, 2 * part))
        agent.start()
        topic.wait_for_rows(2 * part)
        servers.pulsar.kill()
        for start in range(2 * part, total, step):
            _wait_for_room(servers)
            _write(again, table, range(start, start + step))
    servers.pulsar.start()
    topic.wait_for_rows(total)
    assert _keys(topic) == set(range(total))
    assert len({each.place for each in topic.events}) == total
    assert agent.metric("segments_gone_unread") == agent.metric("parked") == 0


def _metric(agent: AgentProcess, line: str) -> float:
    """A metric from the HTTP page: the status file may be as old as the full disk."""
    page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    return next((float(each.rpartition(" ")[2]) for each in page.splitlines() if each.startswith(f"{line} ")), 0.0)


def test_a_full_disk_ends_nothing_loses_nothing_and_goes_on_when_there_is_room(
    servers: Sandbox, session: Session, table: str, tmp_path: Path, topic_of: TopicOf
) -> None:
    """An agent whose files cannot grow keeps running, loses nothing, and continues when there is room again.

    The error is the system's own (RLIMIT_FSIZE). The agent has to write positions, its status, the schema of a new
    table, and events of a topic that refuses them. It deletes no segment before the segment's position is stored.
    """
    agent = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path / "agent", shutdownTimeoutMs=1_000, maxInflightEvents=400
    )
    refused, new = table.replace(".t", ".refused"), table.replace(".t", ".new")
    session.execute(f"CREATE TABLE {refused} (pk int PRIMARY KEY, v text) WITH cdc = true")
    path = events_topic(*refused.split(".")).removeprefix("persistent://")
    admin = f"{servers.pulsar.admin_url}/admin/v2"
    rest().put(f"{admin}/persistent/{path}/partitions", json=4).raise_for_status()
    foreign = {"type": "STRING", "schema": "", "properties": {}}
    rest().post(f"{admin}/schemas/{path}/schema", json=foreign).raise_for_status()
    agent.start()
    _write(session, table, range(100))
    topic = topic_of(table)
    topic.wait_for_rows(100)
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, unlimited))
    # The segment that Cassandra is writing to now.
    newest = max(servers.node.cdc_raw.glob("*_cdc.idx")).name.replace("_cdc.idx", ".log")
    _write(session, refused, range(150))
    _write(session, table, range(100, 2_000), size=1_000)
    topic.wait_for_rows(2_000)
    wait_until(lambda: _metric(agent, f'cdc_agent_table_write_failures_total{{table="{refused}"}}') > 0, "not held")
    session.execute(f"CREATE TABLE {new} (pk int PRIMARY KEY, v text) WITH cdc = true")
    _write(session, new, range(10))
    # The guard may have moved the segment to the spill folder: a rename needs no room.
    places = [servers.node.cdc_raw / newest, agent.working_dir / "spill" / newest]
    failures = _metric(agent, "cdc_agent_write_failures_total")
    wait_until(lambda: _metric(agent, "cdc_agent_write_failures_total") > failures + 10, "it is tried again and again")
    assert any(each.exists() for each in places)
    assert agent.running, agent.log_tail()
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    topic_of(new).wait_for_rows(10)
    wait_until((agent.working_dir / "held" / f"{refused}.events").exists, "the refused ones are held")
    rest().delete(f"{admin}/schemas/{path}/schema", params={"force": "true"}).raise_for_status()
    topic_of(refused).wait_for_rows(150)
    wait_until(lambda: not any(each.exists() for each in places), "the segment goes")
    assert _keys(topic) == set(range(2_000))
    assert agent.stop() == 0, agent.log_tail()


def test_what_the_agent_archived_can_be_decoded_and_published_again(
    servers: Sandbox, session: Session, table: str, tmp_path: Path, topic_of: TopicOf
) -> None:
    """A real segment is archived, compressed; `cdc agent reprocess` then publishes its rows again."""
    agent = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path / "agent", archiveUrl=str(tmp_path / "archive")
    )
    agent.start()
    _write(session, table, range(3_000), size=1_000)
    topic = topic_of(table)
    topic.wait_for(3_000)
    archived = _wait_for_archived(tmp_path / "archive", {each.message.segment_id for each in topic.events}, 2)
    before = len(topic.events)
    result = CliRunner().invoke(
        cli, ["agent", "reprocess", "--working-dir", str(agent.working_dir), *map(str, archived)]
    )
    assert result.exit_code == 0, result.output
    wait_until(lambda: not list((agent.working_dir / "reprocess").iterdir()), "they are read and deleted")
    wait_until(lambda: len(topic.read()) > before + 500, "rows come again")
    assert {each.place for each in topic.events[before:]} <= {each.place for each in topic.events[:before]}
    assert agent.stop() == 0, agent.log_tail()


def _wait_for_archived(archive: Path, segment_ids: set[int], count: int) -> list[Path]:
    """At least `count` of these segments, once they are archived; segments of an earlier test are archived first."""
    names = {f"CommitLog-7-{each}.log.zst" for each in segment_ids}

    def found() -> list[Path]:
        return sorted(each for each in archive.glob("*/*.zst") if each.name in names)

    wait_until(lambda: len(found()) >= count, f"{count} segments of {sorted(names)} in {archive}")
    return found()


def _is_copied(servers: Sandbox, copies: str, events: Sequence[TopicEvent]) -> bool:
    """Return whether the newest copy of the positions has all these events as acknowledged."""
    with client_of(servers.pulsar.service_url) as client:
        reader = client.create_reader(copies, pulsar.MessageId.latest, start_message_id_inclusive=True)
        if not reader.has_message_available():
            return False
        parsed = parse_positions(reader.read_next(timeout_millis=60_000).data(), copies)
    assert parsed is not None
    _, copied = parsed

    def has(segment_id: int, position: int) -> bool:
        stored = copied.segments.get(SegmentKey(segment_id))
        return segment_id in copied.finished or (stored is not None and stored.position >= position)

    return all(has(each.message.segment_id, each.event.position) for each in events)


def test_a_replaced_machine_goes_on_from_the_copy_of_the_positions(
    servers: Sandbox, session: Session, table: str, tmp_path: Path, topic_of: TopicOf
) -> None:
    """An agent with an empty working directory continues from the copy of the positions and repeats nothing."""
    prefix = f"persistent://public/default/positions-{table.partition('.')[0]}-"
    # Events that are not acknowledged when the agent stops are published again, so a busy broker gets time.
    first = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path / "first", positionsTopicPrefix=prefix, shutdownTimeoutMs=20_000
    )
    first.start()
    _write(session, table, range(2_000))
    topic = topic_of(table)
    topic.wait_for(2_000)
    copies = f"{prefix}{first.status()['node_id']}"
    # The stop makes one more copy, but tries only once, and a busy broker may refuse it.
    wait_until(lambda: _is_copied(servers, copies, topic.events), "positions behind all events are copied")
    assert first.stop(timeout_s=60) == 0, first.log_tail()
    second = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "second", positionsTopicPrefix=prefix)
    second.start()
    _write(session, table, range(2_000, 2_100))
    topic.wait_for_rows(2_100)
    assert second.stop() == 0, second.log_tail()
    assert "positions are taken from their copy" in second.log.read_text()
    assert _keys(topic) == set(range(2_100)) and len(topic.read()) == 2_100


@pytest.mark.parametrize(
    ("has_copy", "said", "goes_on"),
    [
        (
            False,
            "another agent for this node has it, perhaps on another machine: this one waits",
            "has ended; this one continues",
        ),
        (
            True,
            "another agent, perhaps on another machine, has this node's positions: this one",
            "are this agent's now",
        ),
    ],
)
def test_a_second_agent_on_another_machine_waits_for_the_first_one(
    servers: Sandbox,
    session: Session,
    table: str,
    tmp_path: Path,
    topic_of: TopicOf,
    has_copy: bool,
    said: str,
    goes_on: str,
) -> None:
    """The second agent reads another `cdc_raw` folder, so no lock stops it, and it has its own positions from an
    earlier run."""
    prefix = f"persistent://public/default/owner-{table.partition('.')[0]}-"
    options = {"positionsTopicPrefix": prefix} if has_copy else {}
    first = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "first", **options)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options["cdcRawDirectory"] = str(elsewhere)
    second = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "second", **options)
    try:
        first.start()
        _write(session, table, range(100))
        topic = topic_of(table)
        topic.wait_for(100)
        assert first.stop() == 0, first.log_tail()
        for each in servers.node.cdc_raw.iterdir():
            shutil.copy(each, elsewhere)
        second.start()
        wait_until((second.working_dir / "positions-a.json").exists, "the second one has positions")
        assert second.stop() == 0, second.log_tail()
        first.start()
        _write(session, table, range(100, 200))
        topic.wait_for_rows(200)
        # In the second agent's earlier run the broker may not have noticed yet that the first one had ended.
        new_log = log_from_now(second)
        second.start()
        wait_until(lambda: said in new_log(), "the second one waits")
        assert second.metric("mutations_read") == 0
        first.kill()
        wait_until(lambda: goes_on in new_log(), "it goes on")
        assert new_log().count(said) == 1
    finally:
        first.kill()
        code = second.stop()
    assert code == 0, second.log_tail()
    assert _keys(topic) == set(range(200))


def test_a_second_agent_of_the_node_waits_in_a_directory_of_its_own_until_the_first_one_is_killed(
    servers: Sandbox, session: Session, table: str, agent: AgentProcess, tmp_path: Path, topic_of: TopicOf
) -> None:
    """The second agent logs one line, reads nothing and writes no file to `cdc_raw`; it starts when the first one is
    killed and its lock is gone."""
    agent.start()
    second = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "second", shutdownTimeoutMs=1_000)
    second.launch()
    try:
        wait_until(lambda: "another agent reads" in second.log_tail(), "the second one waits")
        _write(session, table, range(500))
        topic = topic_of(table)
        assert len(topic.wait_for(500)) == 500
        assert not second.working_dir.exists()
        assert all(each.name.startswith("CommitLog-") for each in servers.node.cdc_raw.iterdir())
        agent.kill()
        wait_until(second.working_dir.exists, "the second one goes on")
        _write(session, table, range(500, 600))
        topic.wait_for_rows(600)
        assert second.log.read_text().count("another agent reads") == 1
    finally:
        code = second.stop()
    assert code == 0, second.log_tail()
    assert _keys(topic) == set(range(600))


def test_the_commit_log_of_a_running_node_is_left_alone(running_servers: Sandbox, tmp_path: Path) -> None:
    """The node names its commit log, whatever the folder is called. The agent deleted what Cassandra had not flushed."""
    node = running_servers.node
    (tmp_path / "cdc_raw").mkdir()
    given = AgentConfig.from_mapping(
        {
            "cdcRawDirectory": str(tmp_path / "cdc_raw"),
            "cdcWorkingDir": str(tmp_path / "work"),
            "contactPoints": node.address,
            "port": node.native_port,
        },
        {},
    )
    assert check_raw_folder(given, lambda: False)
    wrong = given.model_copy(update={"cdc_raw_directory": node.commitlog_dir})
    with pytest.raises(ConfigError, match=r"commitlog is the node's commit log, whose segments the agent would delete"):
        check_raw_folder(wrong, lambda: False)
    right = given.model_copy(update={"cdc_raw_directory": node.cdc_raw})
    assert check_raw_folder(right, lambda: False)
