"""Pulsar's own JDBC sink, with SQLite, reads the data topic: a sink that was not written for this project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from schemas.mutation_event import MutationKind, RangeBounds
from tests.fixtures.connector import CreateLine, DeployConnector, data_topic_name, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until
from tests.topics.jdbc_sink import Rows, jdbc_sink

_SINK = {
    "pk": "INTEGER",
    "ck": "TEXT",
    "b": "BOOLEAN",
    "d": "DOUBLE",
    "f": "FLOAT",
    "i": "TEXT",
    "n": "BIGINT",
    "u": "TEXT",
    "v": "TEXT",
}
_COLUMNS = ", ".join(_SINK)
_DEFINITION = "pk int, ck text, b boolean, d double, f float, i inet, n bigint, u uuid, v text, PRIMARY KEY (pk, ck)"


@pytest.fixture
def sink(pulsar: PulsarServer, keyspace: str, tmp_path: Path) -> Iterator[Rows]:
    """The sink for table `t`; a function that returns the rows of the sink's table, in order."""
    with jdbc_sink(pulsar, data_topic_name(keyspace, "t"), _SINK, ("pk", "ck"), tmp_path) as rows:
        yield rows


def test_a_table_of_pulsars_jdbc_sink_ends_equal_to_select(
    connector_line: CreateLine,
    deploy_connector: DeployConnector,
    sink: Rows,
    cql: Session,
    keyspace: str,
    pulsar: PulsarServer,
) -> None:
    """The sink applies inserts, updates, column deletions, row deletions by null values, and rows written again.

    Rows that a marker, a TTL or a truncation deletes stay in the sink, which does not know these rules. The topic
    `rows-` is meant for such sinks (test_spark_publish_sink).
    """
    line = connector_line(_DEFINITION)
    deploy_connector(keyspace, "t")
    others = ("b", "d", "f", "i", "n", "u", "v")
    insert = (
        "INSERT INTO {t} (pk, ck, b, d, f, i, n, u, v) VALUES (PK, 'CK', true, 0.5, 0.25, '10.0.0.1', 5000000000, "
        "01234567-89ab-4cde-8f01-23456789abcd, 'v') USING {ts}"
    )

    def key(number: int) -> tuple[bytes, bytes]:
        return int32(number % 4), f"c{number}".encode()

    def inserting(number: int, using: str) -> str:
        return insert.replace("PK", str(number % 4)).replace("CK", f"c{number}").replace("{ts}", using)

    def put(number: int, using: str = "{ts}") -> None:
        line.writer.send(line.change(inserting(number, using), *key(number), columns=others))

    def where(number: int) -> str:
        return f"WHERE pk = {number % 4} AND ck = 'c{number}'"

    for number in range(40):
        put(number)
    line.topic.wait_for(40)
    for number in range(0, 40, 5):
        line.writer.send(
            line.change(f"UPDATE {{t}} USING {{ts}} SET v = 'it''s é' {where(number)}", *key(number), columns=("v",))
        )
        line.writer.send(
            line.change(
                f"DELETE n FROM {{t}} USING {{ts}} {where(number)}", *key(number), columns=("n",), is_live=False
            )
        )
    for number in range(1, 40, 5):
        delete = f"DELETE FROM {{t}} USING {{ts}} {where(number)}"
        line.writer.send(line.change(delete, *key(number), kind=MutationKind.ROW_DELETION))
    put(6)

    def selected() -> list[tuple[object, ...]]:
        found = cql.execute(f"SELECT {_COLUMNS} FROM {keyspace}.t")
        return sorted(
            (row.pk, row.ck, row.b, row.d, row.f, row.i, row.n, None if row.u is None else str(row.u), row.v)
            for row in found
        )

    expected = selected()
    assert len(expected) == 33
    wait_until(lambda: sink() == expected, "the sink's table equal to SELECT")
    # If an event's row were read only after the deletions below, its null value would delete the row from the sink.
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)

    expired = {(0, "c48"), (0, "c52")}
    for number in (48, 52):
        put(number, "TTL 600 AND {ts}")
    wait_until(lambda: expired <= {each[:2] for each in sink()}, "the rows with a TTL in the sink")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    for number in (48, 52):
        line.run(inserting(number, "TTL 1 AND {ts}"))
    taken = {(each[0], each[1]) for each in expected if each[0] == 1 or (each[0] == 0 and "c1" <= str(each[1]) < "c3")}
    bounds = RangeBounds(start=(b"c1",), start_inclusive=True, end=(b"c3",), end_inclusive=False)
    line.writer.send(
        line.change(
            "DELETE FROM {t} USING {ts} WHERE pk = 0 AND ck >= 'c1' AND ck < 'c3'",
            int32(0),
            kind=MutationKind.RANGE_DELETION,
            bounds=bounds,
        ),
        line.change("DELETE FROM {t} USING {ts} WHERE pk = 1", int32(1), kind=MutationKind.PARTITION_DELETION),
    )

    def are_there() -> bool:
        line.topic.poll(0.2)
        return {"range_deletion", "partition_deletion"} <= {each.kind for each in line.topic.records}

    wait_until(are_there, "both markers on the data topic")
    put(44)
    wait_until(lambda: "c44" in {each[1] for each in sink()}, "the row behind the markers in the sink")
    wait_until(lambda: not expired & {each[:2] for each in selected()}, "the end of the TTLs")
    assert len(taken) > 8
    before = {each[:2] for each in sink()}
    assert before - {each[:2] for each in selected()} == taken | expired

    line.writer.truncate()
    put(56)
    wait_until(lambda: "c56" in {each[1] for each in sink()}, "the row behind the truncation in the sink")
    assert [each[:2] for each in selected()] == [(0, "c56")]
    assert {each[:2] for each in sink()} == before | {(0, "c56")}
