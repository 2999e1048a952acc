"""The jobs of the bridge on a standalone cluster that loses one of its workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import SparkSession

from schemas.gap_record import encode_gap
from schemas.row_record import data_key_schema, data_value_schema
from spark_bridge import as_of, current_table
from spark_bridge.jobs.cassandra_rows import host_ids, table_metadata
from tests.agent.archives import archive_of
from tests.fixtures.connector import OpenEventsWriter
from tests.fixtures.mirror import texts
from tests.fixtures.served_table import access_to
from tests.fixtures.spark import Record, RecordWriter
from tests.fixtures.spark_cluster import SparkCluster
from tests.golden.segments import GOLDEN_SEGMENTS
from tests.servers.interface import CassandraServer, PulsarServer
from tests.topics.gaps import gap, make_gaps_topic, report_gaps

pytestmark = pytest.mark.timeout(1_500)

_ROWS = 400
_DELETED = 40
_AT_ONCE = 50
_MOMENT_US = 1_800_000_000_000_000


@pytest.mark.extended
@pytest.mark.usefixtures("keep_data_topics")
def test_every_job_ends_right_although_a_worker_dies_in_the_midst_of_the_mirror(
    spark_cluster: SparkCluster,
    spark: SparkSession,
    cql: Session,
    keyspace: str,
    open_events_writer: OpenEventsWriter,
    record_writer_process: RecordWriter,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    tmp_path: Path,
) -> None:
    """After a worker is lost in a mirror's run, all jobs and reads of the commit log give the right results."""
    since_ms = int(time.time() * 1000)
    table = f"{keyspace}.t"
    cql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
    insert = cql.prepare(f"INSERT INTO {table} (id, name) VALUES (?, ?)")
    kept = [(number, f"row {number}") for number in range(_DELETED, _ROWS)]
    execute_concurrent_with_args(cql, insert, kept, concurrency=50)
    prefix = f"persistent://public/default/cdc-{keyspace}-"
    open_events_writer(keyspace, "t", prefix=prefix)
    access = access_to(cassandra_node)
    metadata = table_metadata(access, keyspace, "t")
    (node, *_) = host_ids(access)
    make_gaps_topic(pulsar, prefix)
    report_gaps(pulsar, prefix, [encode_gap(gap(node, keyspace, "t", metadata.table_id, since_ms))])
    topic = f"persistent://public/default/data-{table}"
    record_writer_process.write(
        topic,
        data_key_schema(metadata),
        data_value_schema(metadata),
        [
            *[Record(key={"id": number}, value={"name": f"before {number}"}) for number in range(_ROWS)],
            *[Record(key={"id": number}, value={"name": name}) for number, name in kept],
            *[Record(key={"id": number}) for number in range(_DELETED)],
        ],
        batch=_AT_ONCE,
    )
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topic}
    golden = next(each for each in GOLDEN_SEGMENTS if each.line == "5.0")
    archive = archive_of(tmp_path / "archive", [golden])
    victim, survivor = spark_cluster.worker_pids

    found = spark_cluster.drive(
        "tests.spark.cluster_driver",
        {
            "options": options,
            "target": str(tmp_path / "mirror"),
            "victim": victim,
            "events_prefix": prefix,
            "archive": archive,
            "archived_table": "golden.collections",
            "moment_us": _MOMENT_US,
            "address": cassandra_node.address,
            "port": cassandra_node.native_port,
            "keyspace": keyspace,
            "table": "t",
        },
    )

    assert spark_cluster.worker_pids == [survivor]
    assert found["killed_within"]
    assert found["active_tasks"] > 0
    rows = texts(current_table(spark, options))
    assert len(rows) == _ROWS - _DELETED
    assert found["rows"] == found["current"] == found["fresh"] == rows
    assert found["records"] == 2 * _ROWS
    assert found["open_versions"] == len(rows)
    assert found["changes"] >= len(rows)
    assert (found["sent"], found["compared"], found["differences"]) == (len(rows), len(rows), [])
    # A null or a row for each key, and each change.
    assert found["published"] == [_ROWS, found["changes"]]
    (reason,) = found["left_open"]
    assert reason.startswith("all rows were sent, but the connector has not consumed them after 1 s")
    archived = {"archiveUrl": archive, "table": "golden.collections"}
    assert found["as_of"] == texts(as_of(spark, archived, _MOMENT_US, partial=True))
