"""The job `resync`: changes that never reached the events topic, and the gap record that an agent publishes for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from cdc.commands.spark import spark as spark_commands
from schemas.gap_record import encode_gap
from spark_bridge import current_table
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess, host_ids, table_metadata
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.resync import Outcome, resync
from spark_bridge.topics.gaps import GapsTopic
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.connector import wait_until_acknowledged
from tests.fixtures.served_table import ServeTable
from tests.fixtures.spark import killed_driver
from tests.servers.interface import CassandraServer, PulsarServer
from tests.topics.gaps import gap, make_gaps_topic, messages_in, report_gaps

pytestmark = pytest.mark.timeout(1_500)

_LONG_AGO_US: Final = 1_700_000_000_000_000
"""A write time of the year 2023: before every window and its margin."""


def in_cassandra(cql: Session, table: str) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    rows = cql.execute(f"SELECT pk, at, name, tags, note FROM {table}")
    return {(row.pk, round(row.at.replace(tzinfo=UTC).timestamp() * 1000)): _values(row) for row in rows}


def _values(row: Any) -> tuple[Any, ...]:
    return row.name, sorted(row.tags or ()), row.note


def in_spark(table: DataFrame | None) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    assert table is not None
    rows = table.select("pk", F.unix_millis("at").alias("at"), "name", "tags", "note").collect()
    return {(row.pk, row["at"]): _values(row) for row in rows}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table with a connector, 30 rows on its data topic, and a gaps topic without records."""

    table: str
    prefix: str
    events_topic: str
    options: Mapping[str, str]
    data: Mapping[str, str]
    access: CassandraAccess


@pytest.fixture
def source(cql: Session, keyspace: str, serve_table: ServeTable, pulsar: PulsarServer, spark: SparkSession) -> Source:
    """The source; its rows have write times before each window."""
    table, prefix = f"{keyspace}.healed", f"persistent://public/default/cdc-{keyspace}-"
    cql.execute(
        f"CREATE TABLE {table} (pk int, at timestamp, name text, tags set<text>, note text static, PRIMARY KEY (pk, at))"
    )
    for number in range(30):
        cql.execute(
            f"INSERT INTO {table} (pk, at, name, tags) VALUES ({number % 10}, {number}, 'row', {{'a'}})"
            f" USING TIMESTAMP {_LONG_AGO_US}"
        )
    made = serve_table("healed", prefix)
    backfill(spark, made.servers, made.access, keyspace, "healed", ranges=2, events_prefix=prefix)
    wait_until_acknowledged(made.writer.topic, pulsar.admin_url)
    make_gaps_topic(pulsar, prefix)
    return Source(
        table=table,
        prefix=prefix,
        events_topic=made.writer.topic,
        options={**made.servers, "eventsTopicPrefix": prefix},
        data=made.data,
        access=made.access,
    )


def test_what_a_gap_lost_is_on_the_topic_again_and_the_gap_is_closed(
    cql: Session,
    keyspace: str,
    source: Source,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Lost updates, deletions, and changes without a write time are published again, and the gap is closed.

    Another gap is closed at the end of a mirror's run.
    """
    table, prefix, access = source.table, source.prefix, source.access
    options, data = source.options, source.data

    since_ms = int(time.time() * 1000)
    cql.execute(f"UPDATE {table} SET name = 'updated' WHERE pk = 1 AND at = 1")
    cql.execute(f"INSERT INTO {table} (pk, at, name) VALUES (77, 1, 'inserted')")
    cql.execute(f"UPDATE {table} SET note = 'noted' WHERE pk = 2")
    cql.execute(f"DELETE FROM {table} WHERE pk = 3 AND at = 3")
    cql.execute(f"DELETE FROM {table} WHERE pk = 4")
    cql.execute(f"DELETE name FROM {table} WHERE pk = 5 AND at = 5")
    cql.execute(f"UPDATE {table} SET tags = tags + {{'b'}} WHERE pk = 6 AND at = 6")
    cql.execute(f"INSERT INTO {table} (pk, at, name) VALUES (78, 1, 'of old') USING TIMESTAMP {_LONG_AGO_US}")
    (node, *_) = host_ids(access)
    table_id = table_metadata(access, keyspace, "healed").table_id
    healed = gap(node, keyspace, "healed", table_id, since_ms)
    others = [
        gap(node, keyspace, "gone", UUID(int=5), since_ms),
        gap(UUID(int=9), keyspace, "gone", UUID(int=5), since_ms),
    ]
    report_gaps(pulsar, prefix, [*map(encode_gap, (healed, *others)), b"no gap record"])
    topic = GapsTopic(BridgeOptions.without_topic(options))
    assert topic.open_gaps() == [healed, *others]

    part = resync(spark, options, access, tables=[table], ranges=2, max_differences=1)
    (left,) = part.tables
    assert (left.outcome, part.left_open) == (Outcome.LEFT_OPEN, 1)
    assert left.reason.endswith("1 of them were sent: when the connector has published them, run again for the others")
    assert topic.open_gaps() == [healed, *others]

    report = resync(spark, options, access, ranges=2)
    gone, elsewhere, done = report.tables
    assert (gone.outcome, gone.reason) == (Outcome.CLOSED, "the table was dropped")
    assert elsewhere.outcome is Outcome.LEFT_OPEN
    assert "node 00000000-0000-0000-0000-000000000009 of the gap is not in that cluster" in elsewhere.reason
    # Row 1, row 77, and three rows of the partition with the note.
    assert (done.table, done.outcome, done.written) == (table, Outcome.CLOSED, 5)
    assert report.foreign_messages == 1
    assert topic.open_gaps() == [others[1]]
    expected = in_cassandra(cql, table)
    assert len(expected) == 30 + 2 - 4
    assert in_spark(current_table(spark, data)) == expected

    since_ms = int(time.time() * 1000)
    cql.execute(f"UPDATE {table} SET name = 'updated later' WHERE pk = 7 AND at = 7")
    cql.execute(f"DELETE FROM {table} WHERE pk = 8 AND at = 8")
    later = replace(gap(node, keyspace, "healed", table_id, since_ms), first_segment_id=9, last_segment_id=9)
    report_gaps(pulsar, prefix, [encode_gap(later)])
    target = str(tmp_path / "mirror")
    mirror(spark, {**data, "eventsTopicPrefix": prefix}, target, resync_from=access)
    assert topic.open_gaps() == [others[1]]
    assert in_spark(MirrorTables(spark, target).rows.read()) == in_cassandra(cql, table)

    sent = messages_in(pulsar, source.events_topic)
    command = ["resync", "--service-url", pulsar.service_url, "--admin-url", pulsar.admin_url, "--table", table]
    command += ["--contact-point", cassandra_node.address, "--events-prefix", prefix]
    again = CliRunner().invoke(spark_commands, command)
    assert (again.exit_code, again.output.splitlines()[0]) == (0, "no gap is open: nothing to do")
    assert messages_in(pulsar, source.events_topic) == sent


@pytest.mark.extended
def test_a_killed_run_leaves_the_gap_open_and_the_next_one_closes_it(
    cql: Session,
    keyspace: str,
    source: Source,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """The driver is killed before it sends the differing rows, and before it writes the record that closes the gap."""
    since_ms = int(time.time() * 1000)
    cql.execute(f"UPDATE {source.table} SET name = 'updated' WHERE pk = 1 AND at = 1")
    cql.execute(f"DELETE FROM {source.table} WHERE pk = 3 AND at = 3")
    cql.execute(f"DELETE name FROM {source.table} WHERE pk = 5 AND at = 5")
    (node, *_) = host_ids(source.access)
    lost = gap(node, keyspace, "healed", table_metadata(source.access, keyspace, "healed").table_id, since_ms)
    report_gaps(pulsar, source.prefix, [encode_gap(lost)])
    topic = GapsTopic(BridgeOptions.without_topic(source.options))
    arguments = {
        "options": source.options,
        "address": cassandra_node.address,
        "port": cassandra_node.native_port,
        "table": source.table,
    }
    for before in ("sending", "closing"):
        assert killed_driver("resync", "local[1]", {**arguments, "before": before}, tmp_path / before) == -9
        assert topic.open_gaps() == [lost]
    expected = in_cassandra(cql, source.table)
    assert in_spark(current_table(spark, source.data)) == expected

    (done,) = resync(spark, source.options, source.access, ranges=2).tables
    assert (done.outcome, done.written, done.differing) == (Outcome.CLOSED, 1, 0)
    assert topic.open_gaps() == []
    assert in_spark(current_table(spark, source.data)) == expected
