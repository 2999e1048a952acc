"""Tables that are altered and dropped while the agent is down: each row is decoded by the schema of its time."""

from __future__ import annotations

from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from tests.topics.agent_table import AgentTable


def test_a_table_that_came_and_went_while_the_agent_was_down_is_published(
    table: AgentTable, agent: AgentProcess, cql: Session
) -> None:
    """The table is created, altered and dropped while the agent is down: the log has its definition before its rows."""
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
    table: AgentTable, agent: AgentProcess, cql: Session, keyspace: str
) -> None:
    """A user type is dropped with its column, and a column name comes back with another type: nothing is parked."""
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
