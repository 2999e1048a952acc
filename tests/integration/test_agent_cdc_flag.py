"""Changes of tables whose `cdc` is turned off and on: real ALTERs, with the agent running, stopped or killed."""

from __future__ import annotations

import itertools
import threading
import time

from cassandra.cluster import Session
from click.testing import CliRunner

from cdc.agent_process import AgentProcess
from cdc.main import cli
from tests.fixtures.agent import EventsFor
from tests.topics.agent_table import KEYED, AgentTable
from tests.topics.events_topic import wait_until


def test_what_was_written_while_cdc_was_off_is_not_published(table: AgentTable) -> None:
    """Rows written while `cdc` is off are not published, although it is turned off and on twice within one segment."""
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


def test_writes_under_way_while_the_flag_changes_are_never_lost(table: AgentTable, cql: Session) -> None:
    """Four writers run while `cdc` is turned off and on five times. Each write that lies entirely within a period with
    `cdc` on is published; each write that lies entirely within a period with `cdc` off is not."""
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


def test_cdc_stays_off_across_segments(table: AgentTable) -> None:
    """A change of `cdc` still counts in the segments after the one that holds it."""
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


def test_the_next_agent_knows_that_cdc_is_off(table: AgentTable, agent: AgentProcess) -> None:
    """An agent that is stopped or killed while `cdc` is off still skips the rows after its start: the position of the
    change is stored."""
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


def test_a_toggle_while_the_agent_is_down_counts_where_it_stands_in_the_log(
    table: AgentTable, agent: AgentProcess
) -> None:
    """Rows before and after the time with `cdc` off are published, and those in between are not, although no agent saw
    the flag off."""
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


def test_what_was_written_before_cdc_was_turned_off_is_published_later(table: AgentTable, agent: AgentProcess) -> None:
    """Rows that the agent reads after `cdc` is off are published if it was on when Cassandra acknowledged them."""
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


def test_a_batch_over_a_cdc_and_another_table_keeps_its_cdc_part(
    events_for: EventsFor, cql: Session, keyspace: str
) -> None:
    """One mutation of the log holds changes of both tables; only the table with `cdc` has its event published."""
    cql.execute(f"CREATE TABLE {keyspace}.plain (pk int PRIMARY KEY, v text)")
    batch = (
        f"BEGIN UNLOGGED BATCH INSERT INTO {keyspace}.plain (pk, v) VALUES (1, 'x');"
        " INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 3); APPLY BATCH"
    )
    [event] = events_for(KEYED, batch, count=1)
    assert (event.event.partition_key, event.event.columns) == (b"\0\0\0\1", ("v",))


def test_a_table_whose_cdc_was_off_stands_still_until_an_operator_has_verified_it(
    table: AgentTable, agent: AgentProcess
) -> None:
    """The table has no progress while `cdc` is off. Once it is on again, the progress gives the reason, and its time
    stands still until `resume-progress`."""

    def progress() -> dict[str, object] | None:
        found: dict[str, object] | None = agent.status()["published_until"].get(table.name)
        return found

    table.create()
    table.write(1)
    table.catch_up()
    wait_until(lambda: (progress() or {}).get("time_ms") is not None, "it has a time")
    table.cdc(False)
    table.write(2)
    table.catch_up()
    wait_until(lambda: progress() is None, "it is not published")
    table.cdc(True)
    table.write(3)
    assert table.wait_for_last(3) == [1, 3]
    reason = "it had cdc = false, so its changes of that time are not on the events topic"
    wait_until(lambda: reason in str((progress() or {}).get("stopped")), "the reason is reported")
    before = progress()
    table.catch_up()
    assert progress() == before
    resumed = CliRunner().invoke(
        cli, ["agent", "resume-progress", "--working-dir", str(agent.working_dir), table.name], catch_exceptions=False
    )
    assert resumed.exit_code == 0, resumed.output
    wait_until(lambda: (progress() or {}).get("stopped") is None, "it goes on")
