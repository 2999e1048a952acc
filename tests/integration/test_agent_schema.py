"""What the agent makes of schemas that change: real ALTER, DROP and `cdc` toggles, with the agent up, down or killed.

All rows of a test's table are in one partition, so that their events are in the order of the log: when the last one is
there, nothing that stands before it is still to come.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import UUID

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from cdc.agent_process import AgentProcess
from cdc.main import cli
from cdc.rest import rest
from cdc.sandbox import Sandbox
from schemas.topics import events_topic
from tests.events_topic import EventsTopic, wait_until
from tests.fix_agent import EventsFor
from tests.servers import CassandraServer, PulsarServer

_numbers = itertools.count(1)
_KEYED = "pk int, ck int, v int, PRIMARY KEY (pk, ck)"


class _Table:
    """One table, its events topic, and the shared agent."""

    def __init__(
        self, session: Session, agent: AgentProcess, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
    ) -> None:
        self._session, self._agent, self._keyspace, self._open_topic = session, agent, keyspace, open_topic
        self.name = f"{keyspace}.t"

    def create(self, definition: str = _KEYED, *, cdc: bool = True, table: str = "t") -> None:
        self._session.execute(f"CREATE TABLE {self._keyspace}.{table} ({definition}) WITH cdc = {cdc}")

    def cdc(self, flag: bool) -> None:
        self._session.execute(f"ALTER TABLE {self.name} WITH cdc = {flag}")

    def alter(self, change: str) -> None:
        self._session.execute(f"ALTER TABLE {self.name} {change}")

    def write(self, *cks: int) -> None:
        for ck in cks:
            self._session.execute(f"INSERT INTO {self.name} (pk, ck, v) VALUES (1, {ck}, {ck})")

    def end_segment(self) -> None:
        """Cassandra begins a new segment when a table is dropped."""
        filler = f"{self._keyspace}.filler_{next(_numbers)}"
        self._session.execute(f"CREATE TABLE {filler} (pk int PRIMARY KEY) WITH cdc = true")
        self._session.execute(f"INSERT INTO {filler} (pk) VALUES (1)")
        self._session.execute(f"DROP TABLE {filler}")

    def table_id(self) -> UUID:
        query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 't'"
        row = self._session.execute(query, (self._keyspace,)).one()
        assert row is not None
        found: UUID = row.id
        return found

    def published(self) -> list[int]:
        """Clustering keys of all events on the topic now."""
        topic = self._open_topic(self._keyspace, "t")
        return [int.from_bytes(each.event.clustering[0] or b"", "big") for each in topic.read()]

    def wait_for_last(self, ck: int) -> list[int]:
        """Clustering keys of all events as soon as the last row's is there."""
        wait_until(lambda: ck in self.published(), f"row {ck} of {self.name} is on the topic")
        return self.published()

    def catch_up(self) -> None:
        """Wait until the agent has published all that is in the log now."""
        marker = f"marker_{next(_numbers)}"
        self.create("pk int PRIMARY KEY", table=marker)
        self._session.execute(f"INSERT INTO {self._keyspace}.{marker} (pk) VALUES (1)")
        self._open_topic(self._keyspace, marker).wait_for(1)
        # The marker's topic is another one: what was read before it may still be on its way.
        sent = self._agent.metric("messages_sent")
        wait_until(
            lambda: self._agent.metric("messages_sent") >= sent and self._agent.metric("inflight_events") == 0,
            "nothing is on its way",
        )


@pytest.fixture
def table(
    cql: Session, agent: AgentProcess, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
) -> Iterator[_Table]:
    """A table to be created by the test; the agent runs again when the test ends."""
    yield _Table(cql, agent, keyspace, open_topic)
    if not agent.running:
        agent.start()


def test_what_was_written_while_cdc_was_off_is_not_published(table: _Table) -> None:
    """Off and on within one segment, twice; also what a client wrote with a time of its own."""
    table.create()
    table.write(1)
    table.cdc(False)
    table.write(2, 3)
    table.cdc(True)
    table.write(4)
    table.cdc(False)
    table.write(5)
    table.cdc(True)
    table.write(6)
    assert table.wait_for_last(6) == [1, 4, 6]


def test_writes_under_way_while_the_flag_changes_are_never_lost(table: _Table, cql: Session) -> None:
    """Four writers, the flag off and on five times: whatever was acknowledged before a turn-off, or begun behind a turn-on,
    is published; whatever was begun and acknowledged while it was off is not."""
    table.create()
    insert = cql.prepare(f"INSERT INTO {table.name} (pk, ck, v) VALUES (1, ?, 1)")
    cks, stop = itertools.count(1), threading.Event()
    writes: list[tuple[float, float, int]] = []
    off: list[tuple[float, float]] = []
    on: list[tuple[float, float]] = []

    def write() -> None:
        while not stop.is_set():
            ck, begun = next(cks), time.monotonic()
            cql.execute(insert, (ck,))
            writes.append((begun, time.monotonic(), ck))
            stop.wait(0.002)

    def more_rows() -> None:
        wanted = len(writes) + 20
        wait_until(lambda: len(writes) > wanted, "rows are written")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for each in writers:
        each.start()
    for _ in range(5):
        for flag, turns in ((False, off), (True, on)):
            more_rows()
            begun = time.monotonic()
            table.cdc(flag)
            turns.append((begun, time.monotonic()))
    more_rows()
    stop.set()
    for each in writers:
        each.join()
    last = next(cks)
    cql.execute(insert, (last,))
    published = set(table.wait_for_last(last))
    ons = [(0.0, 0.0), *on]
    offs = [*off, (float("inf"), float("inf"))]
    while_on = {
        ck
        for begun, ended, ck in writes
        if any(since[1] < begun and ended < until[0] for since, until in zip(ons, offs, strict=True))
    }
    while_off = {
        ck
        for begun, ended, ck in writes
        if any(since[1] < begun and ended < until[0] for since, until in zip(off, on, strict=True))
    }
    assert len(while_on) > 100 and len(while_off) > 40
    assert while_on - published == set()
    assert while_off & published == set()


def test_cdc_stays_off_across_segments(table: _Table) -> None:
    """The flag's change is in another segment than what was written behind it."""
    table.create()
    table.write(1)
    table.cdc(False)
    table.write(2)
    table.end_segment()
    table.write(3)
    table.catch_up()
    assert table.published() == [1]
    table.end_segment()
    table.cdc(True)
    table.write(4)
    assert table.wait_for_last(4) == [1, 4]


def test_the_next_agent_knows_that_cdc_is_off(table: _Table, agent: AgentProcess) -> None:
    """Stopped while the flag is off, and killed: the place of the change in the log is stored."""
    table.create()
    table.write(1)
    table.cdc(False)
    table.catch_up()
    agent.stop()
    table.write(2)
    agent.start()
    table.write(3)
    agent.kill()
    table.write(4)
    agent.start()
    table.cdc(True)
    table.write(5)
    assert list(dict.fromkeys(table.wait_for_last(5))) == [1, 5]


def test_a_toggle_while_the_agent_is_down_counts_where_it_stands_in_the_log(table: _Table, agent: AgentProcess) -> None:
    """What was written before and behind is published, in between not, though nobody saw the flag off."""
    table.create()
    table.write(1)
    table.catch_up()
    agent.stop()
    table.write(2)
    table.cdc(False)
    table.write(3)
    table.end_segment()
    table.write(4)
    table.cdc(True)
    table.write(5)
    agent.start()
    assert table.wait_for_last(5) == [1, 2, 5]


def test_what_was_written_before_cdc_was_turned_off_is_published_later(table: _Table, agent: AgentProcess) -> None:
    """Read when the flag is off already: it was on when Cassandra acknowledged the write."""
    table.create()
    table.write(1)
    table.catch_up()
    agent.stop()
    table.write(2, 3)
    table.cdc(False)
    table.write(4)
    agent.start()
    table.catch_up()
    assert table.published() == [1, 2, 3]


def test_a_table_that_came_and_went_while_the_agent_was_down_is_published(
    table: _Table, agent: AgentProcess, cql: Session
) -> None:
    """Nobody knows the table any more but the log: its definition stands there before its rows."""
    agent.stop()
    table.create("pk int, ck int, v int, PRIMARY KEY (pk, ck)")
    table.write(1)
    table.alter("ADD w text")
    table.write(2)
    table.alter("DROP v")
    cql.execute(f"INSERT INTO {table.name} (pk, ck, w) VALUES (1, 3, 'x')")
    cql.execute(f"DROP TABLE {table.name}")
    agent.start()
    assert table.wait_for_last(3) == [1, 2, 3]
    assert agent.metric("parked") == 0


def test_dropped_columns_are_read_by_the_definitions_of_their_time(
    table: _Table, agent: AgentProcess, cql: Session, keyspace: str
) -> None:
    """A user type that is dropped as well, and a name that comes back with another type: nothing is parked."""
    cql.execute(f"CREATE TYPE {keyspace}.point (x int, y text)")
    table.create("pk int, ck int, v int, p frozen<point>, w text, PRIMARY KEY (pk, ck)")
    table.catch_up()
    agent.stop()
    cql.execute(f"INSERT INTO {table.name} (pk, ck, v, p, w) VALUES (1, 1, 1, {{x: 1, y: 'one'}}, 'a')")
    cql.execute(f"UPDATE {table.name} SET v = 2, p = {{x: 7}}, w = 'b' WHERE pk = 1 AND ck = 2")
    table.alter("DROP p")
    cql.execute(f"DROP TYPE {keyspace}.point")
    table.alter("DROP w")
    table.alter("ADD w blob")
    cql.execute(f"INSERT INTO {table.name} (pk, ck, w) VALUES (1, 3, 0x{'ab' * 200})")
    agent.start()
    assert table.wait_for_last(3) == [1, 2, 3]
    assert agent.metric("parked") == 0


def test_a_batch_over_a_cdc_and_another_table_keeps_its_cdc_part(
    events_for: EventsFor, cql: Session, keyspace: str
) -> None:
    """One mutation of the log holds both; the other table has no topic."""
    cql.execute(f"CREATE TABLE {keyspace}.plain (pk int PRIMARY KEY, v text)")
    batch = (
        f"BEGIN UNLOGGED BATCH INSERT INTO {keyspace}.plain (pk, v) VALUES (1, 'x');"
        " INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 3); APPLY BATCH"
    )
    [event] = events_for(_KEYED, batch, count=1)
    assert (event.event.partition_key, event.event.columns) == (b"\0\0\0\1", ("v",))


def _forget(agent: AgentProcess, table_id: UUID) -> list[tuple[object, ...]]:
    """Make a stopped agent forget a table; what it knew of it."""
    with closing(sqlite3.connect(agent.working_dir / "schema.sqlite")) as database, database:
        rows = database.execute("SELECT * FROM definition WHERE table_id = ?", (str(table_id),)).fetchall()
        database.execute("DELETE FROM definition WHERE table_id = ?", (str(table_id),))
    return rows


def _parked(agent: AgentProcess, *options: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["parked", "--config", str(agent.config), *options])
    assert result.exit_code == 0, result.output
    return result.output


def _remember(agent: AgentProcess, rows: list[tuple[object, ...]]) -> None:
    with closing(sqlite3.connect(agent.working_dir / "schema.sqlite")) as database, database:
        database.executemany("INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def test_what_cannot_be_decoded_waits_in_sight_and_holds_its_segment(
    table: _Table, agent: AgentProcess, pulsar: PulsarServer, cassandra_node: CassandraServer, cql: Session
) -> None:
    """A table whose definition nobody has: parked, counted, listed; others go on; published when it is known.

    The broker drops what it takes for duplicates, and drops none of it.
    """
    table.create()
    table.write(1)
    table.catch_up()
    path = events_topic(*table.name.split(".")).removeprefix("persistent://")
    rest().post(f"{pulsar.admin_url}/admin/v2/persistent/{path}/deduplicationEnabled", json=True).raise_for_status()
    table_id = table.table_id()
    agent.stop()
    known = _forget(agent, table_id)
    table.write(2, 3)
    cql.execute(f"DROP TABLE {table.name}")
    agent.start()
    table.catch_up()
    wait_until(lambda: agent.metric("parked") == 2, "two are parked")
    assert table.published() == [1]
    assert _parked(agent).count(f"table id {table_id} is not in the known schema") == 2
    [held] = {json.loads(line)["segment"] for line in _parked(agent, "--json").splitlines()}
    table.end_segment()
    table.end_segment()
    table.catch_up()
    assert (cassandra_node.cdc_raw / held).exists()
    agent.stop()
    _remember(agent, known)
    agent.start()
    assert sorted(table.wait_for_last(3)) == [1, 2, 3]
    wait_until(lambda: agent.metric("parked") == 0, "nothing is parked")
    wait_until(lambda: not (cassandra_node.cdc_raw / held).exists(), "the segment goes")


def test_the_log_is_decoded_while_cassandra_is_down_and_the_parked_when_it_is_back(
    table: _Table, agent: AgentProcess, sandbox: Sandbox, cql: Session, keyspace: str,
    open_topic: Callable[[str, str], EventsTopic],
) -> None:  # fmt: skip
    """The agent's history explains what Cassandra left; what it does not know is parked, and read when the node answers."""
    table.create()
    table.write(1)
    table.create(table="known")
    cql.execute(f"INSERT INTO {keyspace}.known (pk, ck, v) VALUES (1, 1, 1)")
    table.catch_up()
    table_id = table.table_id()
    agent.stop()
    _forget(agent, table_id)
    table.write(2)
    cql.execute(f"INSERT INTO {keyspace}.known (pk, ck, v) VALUES (1, 2, 2)")
    table.write(3)
    sandbox.node.stop()
    try:
        agent.start()
        open_topic(keyspace, "known").wait_for(2)
        wait_until(lambda: agent.metric("parked") == 2, "the unknown table's are parked")
        assert table.published() == [1]
    finally:
        sandbox.node.start()
    assert table.wait_for_last(3) == [1, 2, 3]
    wait_until(lambda: agent.metric("parked") == 0, "nothing is parked")
