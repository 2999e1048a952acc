"""The agent is killed 50 times under load, and Cassandra's own reader is the judge; and what another agent fails at.

The last test stops the node, for the judge takes the schema from its folder: the order of this file matters.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pytest
from cassandra.cluster import ResponseFuture, Session
from cassandra.concurrent import execute_concurrent_with_args

from cdc.agent_process import AgentProcess
from cdc.sandbox import Sandbox, SandboxOptions
from schemas.topics import events_topic
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.servers.cassandra_session import cluster_of
from tests.topics.events_topic import EventsTopic, TopicEvent, wait_until

_KILLS: Final = 50
_SEED_VARIABLE: Final = "CDC_TEST_SEED"
_TABLES: Final = ("plain", "clustered", "Mixed")

# What one change is, to the agent and to the judge: segment, end of its entry, ordinal, table, partition key, clustering.
Change = tuple[int, int, int, str, str, tuple[str | None, ...]]


@pytest.fixture(scope="module")
def servers() -> Iterator[Sandbox]:
    """A node and a Pulsar that these tests may stop."""
    with Sandbox(SandboxOptions(commitlog_sync_ms=100, functions_runtime="thread")) as running:
        yield running


@pytest.fixture
def session(servers: Sandbox) -> Iterator[Session]:
    """A session with the node; made anew for each test, for the node may have been started again."""
    with cluster_of(servers.node) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="module")
def agent(servers: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """The agent of the node, not running at first."""
    process = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path_factory.mktemp("agent"))
    yield process
    process.stop()


def _topic(servers: Sandbox, keyspace: str, table: str) -> EventsTopic:
    pulsar = servers.pulsar
    return EventsTopic(pulsar.service_url, pulsar.admin_url, events_topic(keyspace, table))


def _create(session: Session, keyspace: str) -> None:
    session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    for definition in (
        "plain (pk int PRIMARY KEY, v text)",
        "clustered (pk int, ck int, s text static, v text, PRIMARY KEY (pk, ck))",
        '"Mixed" ("Pk" int, "Ck" text, "V" text, PRIMARY KEY ("Pk", "Ck"))',
    ):
        session.execute(f"CREATE TABLE {keyspace}.{definition} WITH cdc = true")


def test_a_backlog_arrives_whole_when_cassandra_restarts_before_the_agent_has_read_it(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """Written without an agent; the agent comes first and the node last. Another agent deletes such a backlog unread."""
    _create(session, "backlog")
    insert = session.prepare("INSERT INTO backlog.plain (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(pk, "x" * 300) for pk in range(5_000)], concurrency=64)
    servers.node.stop()
    agent.start()
    servers.node.start()
    with _topic(servers, "backlog", "plain") as topic:
        topic.wait_for_rows(5_000)
        keys = {int.from_bytes(each.event.partition_key, "big") for each in topic.events}
    assert keys == set(range(5_000))


def test_a_table_with_a_mixed_case_key_stops_no_other_table(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """It is published like any other; another agent sends the whole segment again and again until the disk is full."""
    if not agent.running:
        agent.start()
    _create(session, "mixed")
    session.execute("""INSERT INTO mixed."Mixed" ("Pk", "Ck", "V") VALUES (1, 'A', 'v')""")
    session.execute("INSERT INTO mixed.plain (pk, v) VALUES (1, 'v')")
    with _topic(servers, "mixed", "Mixed") as mixed, _topic(servers, "mixed", "plain") as plain:
        [event] = mixed.wait_for(1)
        assert json.loads(event.message.key_schema)["fields"][0]["name"] == "Pk"
        assert len(plain.wait_for(1)) == 1
    assert agent.metric("mutations_parked") == 0


def test_a_segment_that_cannot_be_read_is_kept_and_told(
    servers: Sandbox, session: Session, agent: AgentProcess
) -> None:
    """Its bytes are damaged: what stands before and in other segments arrives. Another agent deletes it all the same."""
    agent.stop()
    _create(session, "damaged")
    insert = session.prepare("INSERT INTO damaged.plain (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(pk, "x" * 700) for pk in range(6_000)], concurrency=64)
    cdc_raw = servers.node.cdc_raw
    completed = sorted(path for path in cdc_raw.glob("*_cdc.idx") if "COMPLETED" in path.read_text())
    segment = cdc_raw / completed[-1].name.replace("_cdc.idx", ".log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    # Another file by the same name: Cassandra's own stays as it is.
    damaged = cdc_raw.parent / "damaged"
    damaged.write_bytes(content)
    damaged.replace(segment)
    agent.start()
    kept = agent.working_dir / "error" / segment.name
    wait_until(kept.exists, "the segment is set aside")
    assert kept.read_bytes() == bytes(content)
    assert segment.name in agent.log.read_text()
    wait_until(lambda: agent.metric("lag_bytes") == 0, "the others go on")
    with _topic(servers, "damaged", "plain") as topic:
        lost = 6_000 - len({each.event.partition_key for each in topic.read()})
    # The damaged entries, or what stands behind them in that one segment.
    assert 0 < lost < 1_500


class _Keeper:
    """Keeps a hard link to each segment that comes to `cdc_raw`, whatever becomes of it there."""

    def __init__(self, cdc_raw: Path, folder: Path) -> None:
        self._cdc_raw, self.folder = cdc_raw, folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        folder.mkdir()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.keep()

    def keep(self) -> None:
        for path in self._cdc_raw.glob("*.log"):
            kept = self.folder / path.name
            if not kept.exists():
                kept.hardlink_to(path)


class _Load:
    """Inserts, updates, deletes, batches of several tables: some hundred mutations a second, until it is stopped."""

    def __init__(self, session: Session, keyspace: str, seed: int) -> None:
        self._session, self._random = session, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        prepare = lambda cql: session.prepare(cql.replace("{k}", keyspace))  # noqa: E731
        self._plain = prepare("INSERT INTO {k}.plain (pk, v) VALUES (?, ?)")
        self._row = prepare("INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, ?, ?)")
        self._static = prepare("UPDATE {k}.clustered SET s = ? WHERE pk = ?")
        self._delete = prepare("DELETE FROM {k}.clustered WHERE pk = ? AND ck = ?")
        self._range = prepare("DELETE FROM {k}.clustered WHERE pk = ? AND ck > ?")
        self._partition = prepare("DELETE FROM {k}.clustered WHERE pk = ?")
        self._mixed = prepare('INSERT INTO {k}."Mixed" ("Pk", "Ck", "V") VALUES (?, ?, ?)')
        self._batch = prepare(
            "BEGIN UNLOGGED BATCH INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, 1, ?)"
            " INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, 2, ?)"
            ' INSERT INTO {k}."Mixed" ("Pk", "Ck", "V") VALUES (?, \'b\', ?) APPLY BATCH'
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.08):
                for pending in [self._write(self._random.randrange(8), self._random.randrange(500)) for _ in range(16)]:
                    pending.result()
        except BaseException as error:  # noqa: BLE001  # told by the test's thread
            self._failure = error

    def _write(self, which: int, pk: int) -> ResponseFuture:
        value, ck = "x" * self._random.randrange(50, 900), self._random.randrange(20)
        statement, values = (
            (self._plain, (pk, value)),
            (self._plain, (pk, value)),
            (self._row, (pk, ck, value)),
            (self._mixed, (pk, str(ck), value)),
            (self._batch, (pk, value, pk, value, pk, value)),
            (self._static, (value, pk)),
            (self._delete, (pk, ck)),
            ((self._range, (pk, ck)) if ck % 2 else (self._partition, (pk,))),
        )[which]
        return self._session.execute_async(statement, values)


@pytest.mark.timeout(1800)
def test_after_50_kills_under_load_the_events_are_what_cassandra_itself_reads(
    servers: Sandbox, session: Session, agent: AgentProcess, tmp_path: Path
) -> None:
    """Killed at random moments, starting or publishing: no change is missing, none is invented, some come twice."""
    seed = int(os.environ.get(_SEED_VARIABLE) or secrets.randbelow(10**6))
    print(f"kills of seed {seed} ({_SEED_VARIABLE} repeats them)")
    rng = random.Random(seed)
    agent.stop()
    with _Keeper(servers.node.cdc_raw, tmp_path / "kept") as keeper:
        _create(session, "kills")
        with _Load(session, "kills", seed):
            for _ in range(_KILLS):
                if rng.random() < 0.4:
                    agent.launch()
                    time.sleep(rng.uniform(0.1, 1.0))
                else:
                    agent.start()
                    time.sleep(rng.uniform(0.0, 0.6))
                agent.kill()
        agent.start()
        topics = {table: _topic(servers, "kills", table) for table in _TABLES}
        _wait_for_the_end(session, topics)
        wait_until(lambda: agent.metric("lag_bytes") == 0, "everything that was synced is acknowledged")
    servers.node.drain()
    servers.node.kill()
    published = [(table, each) for table, topic in topics.items() for each in topic.read()]
    for topic in topics.values():
        topic.close()
    judge = CommitLogOracle("5.0", tmp_path).read(sorted(keeper.folder.glob("*.log")), servers.node.folder)
    assert judge.errors == []
    expected = {change for line in judge.lines for change in _changes_of(json.loads(line))}
    found = Counter(_change(table, each) for table, each in published)
    print(f"{len(expected)} changes, {found.total() - len(found)} came twice")
    assert len(expected) > 2_000
    assert (expected - set(found), set(found) - expected) == (set(), set())
    for table in _TABLES:
        for partition in range(4):
            of_partition = [each for name, each in published if (name, each.partition) == (table, partition)]
            first_seen = list(dict.fromkeys(each.place[1:] for each in of_partition))
            assert first_seen == sorted(first_seen)


def _wait_for_the_end(session: Session, topics: dict[str, EventsTopic]) -> None:
    """A last row of each table is on its topic."""
    session.execute("INSERT INTO kills.plain (pk, v) VALUES (-1, '')")
    session.execute("INSERT INTO kills.clustered (pk, ck, v) VALUES (-1, 0, '')")
    session.execute("""INSERT INTO kills."Mixed" ("Pk", "Ck", "V") VALUES (-1, '', '')""")
    for table, topic in topics.items():
        wait_until(
            lambda topic=topic: any(each.event.partition_key == b"\xff" * 4 for each in topic.read()),  # type: ignore[misc]
            f"the last row of {table} is on its topic",
            60,
        )


def _change(table: str, each: TopicEvent) -> Change:
    event = each.event
    clustering = tuple(None if value is None else value.hex() for value in event.clustering)
    return each.message.segment_id, event.position, event.ordinal, table, event.partition_key.hex(), clustering


def _changes_of(mutation: dict[str, object]) -> Iterator[Change]:
    """The changes of a mutation in the contract's order: what deletes many rows, the static row, the rows."""
    if mutation["keyspace"] != "kills":
        return
    segment_id = int(str(mutation["segment"]).removesuffix(".log").rpartition("-")[2])
    position, ordinal = int(str(mutation["position"])), 0
    updates = mutation["updates"]
    assert isinstance(updates, list)
    for update in updates:
        wide = [()] * ((update["partition_deletion"] is not None) + len(update["range_tombstones"]))
        static = [()] if update["static_row"] is not None else []
        for clustering in (*wide, *static, *(tuple(row["clustering"]) for row in update["rows"])):
            yield segment_id, position, ordinal, update["table"], update["partition_key"], clustering
            ordinal += 1
