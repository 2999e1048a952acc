"""Random statements on one partition: a dictionary, Cassandra and Spark hold the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_bridge import wait_until_complete
from tests.fixtures.drawn import Serve, drawn, spark_rows
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until

_CK: Final = st.integers(0, 2)
_OR_NULL: Final = st.one_of(st.none(), st.integers(0, 9))
_STATEMENTS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), _CK, _CK, _OR_NULL),
        st.tuples(st.just("update"), _CK, _CK, _OR_NULL),
        st.tuples(st.just("static"), _OR_NULL),
        st.tuples(st.just("put"), _CK, _CK, st.integers(0, 2), _OR_NULL),
        st.tuples(st.just("delete column"), _CK, _CK),
        st.tuples(st.just("delete row"), _CK, _CK),
        st.tuples(st.just("delete prefix"), _CK),
        st.tuples(st.just("delete range"), _CK, _CK),
        st.tuples(st.just("delete partition")),
    ),
    min_size=1,
    max_size=14,
)


class Partition:
    """The model: a dictionary of rows by clustering key, changed by statements with rising timestamps."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], dict[str, Any]] = {}
        self.static: int | None = None

    def apply(self, kind: str, *values: Any) -> str:
        """Change the model, and return the equal CQL statement, with placeholders for time and partition."""
        match kind, *values:
            case "insert", c1, c2, value:
                self.rows.setdefault((c1, c2), {"v": None, "m": {}, "marked": True}).update(v=value, marked=True)
                return f"INSERT INTO {{t}} (pk, c1, c2, v) VALUES ({{pk}}, {c1}, {c2}, {_cql(value)}) USING {{ts}}"
            case "update", c1, c2, value:
                self._row(c1, c2)["v"] = value
                return f"UPDATE {{t}} USING {{ts}} SET v = {_cql(value)} WHERE pk = {{pk}} AND c1 = {c1} AND c2 = {c2}"
            case "static", value:
                self.static = value
                return f"UPDATE {{t}} USING {{ts}} SET s = {_cql(value)} WHERE pk = {{pk}}"
            case "put", c1, c2, key, value:
                held = self._row(c1, c2)["m"]
                held.pop(key, None)
                held |= {} if value is None else {key: value}
                return f"UPDATE {{t}} USING {{ts}} SET m[{key}] = {_cql(value)} WHERE pk = {{pk}} AND c1 = {c1} AND c2 = {c2}"
            case "delete column", c1, c2:
                self._row(c1, c2)["v"] = None
                return f"DELETE v FROM {{t}} USING {{ts}} WHERE pk = {{pk}} AND c1 = {c1} AND c2 = {c2}"
            case "delete row", c1, c2:
                self.rows.pop((c1, c2), None)
                return f"DELETE FROM {{t}} USING {{ts}} WHERE pk = {{pk}} AND c1 = {c1} AND c2 = {c2}"
            case "delete prefix", c1:
                self._leave_out(lambda at: at[0] == c1)
                return f"DELETE FROM {{t}} USING {{ts}} WHERE pk = {{pk}} AND c1 = {c1}"
            case "delete range", c1, c2:
                self._leave_out(lambda at: at[0] == c1 and at[1] > c2)
                return f"DELETE FROM {{t}} USING {{ts}} WHERE pk = {{pk}} AND c1 = {c1} AND c2 > {c2}"
            case _:
                self.rows, self.static = {}, None
                return "DELETE FROM {t} USING {ts} WHERE pk = {pk}"

    def content(self, pk: int) -> list[tuple[Any, ...]]:
        """The rows that SELECT returns: those with a marker or a value, or the static column alone if there is none."""
        rows = [
            (pk, *at, self.static, row["v"], row["m"])
            for at, row in sorted(self.rows.items())
            if row["marked"] or row["v"] is not None or row["m"]
        ]
        return rows if rows or self.static is None else [(pk, None, None, self.static, None, {})]

    def _row(self, c1: int, c2: int) -> dict[str, Any]:
        return self.rows.setdefault((c1, c2), {"v": None, "m": {}, "marked": False})

    def _leave_out(self, gone: Callable[[tuple[int, int]], bool]) -> None:
        self.rows = {at: row for at, row in self.rows.items() if not gone(at)}


def _cql(value: int | None) -> str:
    return "null" if value is None else str(value)


@pytest.mark.timeout(1800)
def test_any_statements_on_a_partition_leave_the_rows_of_a_dictionary(
    cql: Session,
    keyspace: str,
    serve: Serve,
    pulsar: PulsarServer,
    spark: SparkSession,
) -> None:
    """The model, SELECT, and the current table that Spark folds from the data topic are equal."""
    plans = drawn(_STATEMENTS, 60)
    table = f"{keyspace}.t"
    cql.execute(
        f"CREATE TABLE {table} (pk int, c1 int, c2 int, s int static, v int, m map<int, int>, PRIMARY KEY (pk, c1, c2))"
        " WITH cdc = true"
    )
    topics = serve(["t"], "key-value-avro", key="pk, c1, c2", values="0, 0, 0")["key-value-avro"]
    models = {pk: Partition() for pk in range(1, len(plans) + 1)}
    for step in range(max(map(len, plans))):
        waiting = []
        for pk, plan in enumerate(plans, start=1):
            if step < len(plan):
                statement = models[pk].apply(*plan[step])
                waiting.append(cql.execute_async(statement.format(t=table, pk=pk, ts=f"TIMESTAMP {1000 + step}")))
        for each in waiting:
            each.result()
    expected = sorted((row for pk, model in models.items() for row in model.content(pk)), key=repr)
    selected = [
        (r.pk, r.c1, r.c2, r.s, r.v, dict(r.m or {})) for r in cql.execute(f"SELECT * FROM {table}") if r.pk > 0
    ]
    assert sorted(selected, key=repr) == expected

    found: list[tuple[Any, ...]] = []

    def are_equal() -> bool:
        rows = spark_rows(spark, pulsar, topics[0].name)
        held = [{int(key): value for key, value in (row["m"] or {}).items()} for row in rows]
        found[:] = [
            (row["pk"], row["c1"], row["c2"], row["s"], row["v"], each) for row, each in zip(rows, held, strict=True)
        ]
        found.sort(key=repr)
        return found == expected

    topics[0].wait_for(1)  # The first record brings the topic's schema.
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topics[0].name, "table": table}
    wait_until_complete(spark, options)
    try:
        wait_until(are_equal, "the current table is that of Cassandra")
    except AssertionError:
        missing, more = [row for row in expected if row not in found], [row for row in found if row not in expected]
        shown = {row[0]: plans[row[0] - 1] for row in (*missing, *more)}
        pytest.fail(f"missing {missing}, more {more}, of the statements {shown}")
