"""Mutations whose schema the agent does not know are parked and listed until it knows the schema."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from uuid import UUID

from cassandra.cluster import NoHostAvailable, Session
from click.testing import CliRunner

from cdc.agent_process import AgentProcess
from cdc.main import cli
from cdc.rest import rest
from cdc.sandbox import Sandbox
from schemas.topics import events_topic
from tests.servers.interface import CassandraServer, PulsarServer
from tests.topics.agent_table import AgentTable
from tests.topics.events_topic import EventsTopic, wait_until


def _forget(agent: AgentProcess, table_id: UUID) -> list[tuple[object, ...]]:
    """Make a stopped agent forget a table, and return what it knew of the table."""
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
    table: AgentTable, agent: AgentProcess, pulsar: PulsarServer, cassandra_node: CassandraServer, cql: Session
) -> None:
    """Changes of an unknown table are parked, counted and listed, and published once its definition is known.

    Other tables continue, and the segment of the changes is kept. The broker drops duplicates, and drops none of these
    events.
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
    table: AgentTable,
    agent: AgentProcess,
    sandbox: Sandbox,
    cql: Session,
    keyspace: str,
    open_topic: Callable[[str, str], EventsTopic],
) -> None:
    """While Cassandra is down, the agent decodes by stored schemas, and parks other changes until the node answers."""
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
        wait_until(lambda: _is_connected(cql), "the tests' own session has found the node again")
    assert table.wait_for_last(3) == [1, 2, 3]
    wait_until(lambda: agent.metric("parked") == 0, "nothing is parked")


def _is_connected(cql: Session) -> bool:
    try:
        cql.execute("SELECT key FROM system.local")
    except NoHostAvailable:
        return False
    return True
