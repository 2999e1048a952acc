"""The agent is killed many times under load, and its events are compared with what Cassandra's own reader reads.

Other tests show cases in which another agent fails. The last test stops the node, because the reader takes the schema
from the node's folder: the order of this file matters.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.topics import events_topic
from tests.agent.log_load import (
    TABLES,
    LogLoad,
    change_of,
    changes_of,
    create_tables,
    published_in_order,
    wait_for_the_end,
)
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.fault_kit.keeper import SegmentKeeper
from tests.servers.cassandra_session import cluster_of
from tests.topics.agent_table import wait_for_metrics
from tests.topics.events_topic import EventsTopic, wait_until

_KILLS: Final = 10
_EXTENDED_KILLS: Final = 50
_SEED_VARIABLE: Final = "CDC_TEST_SEED"


@pytest.fixture(scope="module")
def servers() -> Iterator[Sandbox]:
    """A node and a Pulsar that these tests may stop."""
    with Sandbox(SandboxOptions(commitlog_sync_ms=100, functions_runtime="thread")) as running:
        yield running


@pytest.fixture
def session(servers: Sandbox) -> Iterator[Session]:
    """A session with the node; made anew for each test because the node may have been restarted."""
    with cluster_of(servers.node) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="module")
def agent(servers: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """The agent of the node, not running at first."""
    process = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path_factory.mktemp("agent"))
    yield process
    process.stop()


def _completed_with(cdc_raw: Path, value: str) -> list[Path]:
    """The completed segments that hold a value, in the order of their names."""
    indexes = sorted(each for each in cdc_raw.glob("*_cdc.idx") if "COMPLETED" in each.read_text())
    logs = [each.with_name(each.name.replace("_cdc.idx", ".log")) for each in indexes]
    return [each for each in logs if value.encode() in each.read_bytes()]


def test_a_backlog_arrives_whole_when_cassandra_restarts_before_the_agent_has_read_it(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """Rows are written without an agent; it then starts before the node. Another agent deletes such backlogs unread."""
    create_tables(session, "backlog")
    insert = session.prepare("INSERT INTO backlog.plain (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(pk, "x" * 300) for pk in range(5_000)], concurrency=64)
    servers.node.stop()
    agent.start()
    servers.node.start()
    with EventsTopic(servers.pulsar, events_topic("backlog", "plain")) as topic:
        topic.wait_for_rows(5_000)
        keys = {int.from_bytes(each.event.partition_key, "big") for each in topic.events}
    assert keys == set(range(5_000))


def test_a_table_with_a_mixed_case_key_stops_no_other_table(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """The table is published like others. Another agent resends the whole segment until the disk is full."""
    if not agent.running:
        agent.start()
    create_tables(session, "mixed")
    session.execute("""INSERT INTO mixed."Mixed" ("Pk", "Ck", "V") VALUES (1, 'A', 'v')""")
    session.execute("INSERT INTO mixed.plain (pk, v) VALUES (1, 'v')")
    with (
        EventsTopic(servers.pulsar, events_topic("mixed", "Mixed")) as mixed,
        EventsTopic(servers.pulsar, events_topic("mixed", "plain")) as plain,
    ):
        [event] = mixed.wait_for(1)
        assert json.loads(event.message.key_schema)["fields"][0]["name"] == "Pk"
        assert len(plain.wait_for(1)) == 1
    assert agent.metric("mutations_parked") == 0


def test_a_segment_that_cannot_be_read_is_kept_and_told(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """A damaged segment is kept, and the events before the damage and in other segments arrive. Another agent deletes
    such a segment."""
    agent.stop()
    create_tables(session, "damaged")
    insert = session.prepare("INSERT INTO damaged.plain (pk, v) VALUES (?, ?)")
    value = "x" * 700
    execute_concurrent_with_args(session, insert, [(pk, value) for pk in range(6_000)], concurrency=64)
    cdc_raw = servers.node.cdc_raw
    wait_until(lambda: bool(_completed_with(cdc_raw, value)), "a segment of these writes is complete")
    segment = _completed_with(cdc_raw, value)[-1]
    content = bytearray(segment.read_bytes())
    # The damage is in a row of this table: if it hit Cassandra's own writes between the rows, no row would be lost.
    rows = [each.start() for each in re.finditer(value.encode(), content)]
    middle = rows[len(rows) // 2]
    content[middle : middle + 64] = bytes(64)
    # A new file of the same name replaces it, so that Cassandra's own file stays as it is.
    damaged = cdc_raw.parent / "damaged"
    damaged.write_bytes(content)
    damaged.replace(segment)
    agent.start()
    kept = agent.working_dir / "error" / segment.name
    wait_until(kept.exists, "the segment is set aside")
    assert kept.read_bytes() == bytes(content)
    assert segment.name in agent.log.read_text()
    with EventsTopic(servers.pulsar, events_topic("damaged", "plain")) as topic:
        topic.wait_for_rows(4_501)
        wait_for_metrics(agent, "the others go on", lag_bytes=0, inflight_events=0)
        lost = 6_000 - len({each.event.partition_key for each in topic.read()})
    # The damaged entries are lost, or also the entries after them in that segment.
    assert 0 < lost < 1_500


@pytest.mark.timeout(1800)
def test_after_many_kills_under_load_the_events_are_what_cassandra_itself_reads(
    servers: Sandbox, session: Session, agent: AgentProcess, tmp_path: Path, is_extended: bool
) -> None:
    """The agent is killed at random moments while it starts or publishes: no event is missing, none is invented, some
    come twice."""
    seed = int(os.environ.get(_SEED_VARIABLE) or secrets.randbelow(10**6))
    print(f"kills of seed {seed} ({_SEED_VARIABLE} repeats them)")
    rng = random.Random(seed)
    least_changes = 2_000 if is_extended else 500
    agent.stop()
    with SegmentKeeper({1: (servers.node.cdc_raw, servers.node.data_dir)}, tmp_path / "kept") as keeper:
        create_tables(session, "kills")
        with LogLoad(session, "kills", seed) as load:
            for _ in range(_EXTENDED_KILLS if is_extended else _KILLS):
                if rng.random() < 0.4:
                    agent.launch()
                    time.sleep(rng.uniform(0.1, 1.0))
                else:
                    agent.start()
                    time.sleep(rng.uniform(0.0, 0.6))
                agent.kill()
            load.wait_for(least_changes)
        agent.start()
        topics = {table: EventsTopic(servers.pulsar, events_topic("kills", table)) for table in TABLES}
        wait_for_the_end(session, topics)
        wait_for_metrics(agent, "everything that was synced is acknowledged", lag_bytes=0, inflight_events=0)
    servers.node.drain()
    servers.node.kill()
    published = published_in_order(topics)
    judge = CommitLogOracle("5.0", tmp_path).read(keeper.segments(1), servers.node.folder)
    assert judge.errors == []
    expected = {change for line in judge.lines for change in changes_of("kills", json.loads(line))}
    found = Counter(change_of(table, each) for table, each in published)
    print(f"{len(expected)} changes, {found.total() - len(found)} came twice")
    assert len(expected) > least_changes
    assert (expected - set(found), set(found) - expected) == (set(), set())
