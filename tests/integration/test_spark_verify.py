"""The jobs `mirror` and `verify` behind a real Cassandra, agent and connector."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from cdc.demo.comparison import differences
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.verify import Difference, verify
from tests.events_topic import wait_until
from tests.fix_connector import DeployConnector, OpenEventsWriter
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN
from tests.servers import CassandraServer, PulsarServer

pytestmark = pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN)

_ROWS = 300


def insert(table: str, number: int, text: str) -> str:
    return (
        f"INSERT INTO {table} (pk, at, name, amount, big, tags, attributes, day, who) VALUES ({number % 40},"
        f" {number}, '{text}', {number}.50, {10**20 + number}, {{'b', 'a{number}'}}, {{{number}: 'x', 3: 'y'}},"
        f" '2026-11-{1 + number % 28:02d}', 00000000-0000-4000-8000-{number:012d})"
    )


def where(number: int) -> str:
    return f"WHERE pk = {number % 40} AND at = {number}"


def keys(found: Sequence[Difference], kind: str) -> list[str]:
    return sorted(each.key for each in found if each.kind == kind)


def key(number: int) -> str:
    return f'{{"pk":{number % 40},"at":{number}}}'


@pytest.mark.usefixtures("agent")
def test_verify_finds_every_planted_difference_and_no_other(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """100 rows are inserted, deleted and updated behind the line's back; topic and mirror are compared."""
    url = f"{pulsar.admin_url}/admin/v2/namespaces/public/default/retention"
    httpx.post(url, json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).raise_for_status()
    table = f"{keyspace}.planted"
    cql.execute(
        f"CREATE TABLE {table} (pk int, at bigint, name text, amount decimal, big varint, tags set<text>,"
        " attributes map<int, text>, day date, who uuid, note text static, PRIMARY KEY (pk, at)) WITH cdc = true"
    )
    connector = deploy_connector(keyspace, "planted")
    for number in range(_ROWS):
        cql.execute(insert(table, number, f"row {number}"))
    for pk in range(0, 40, 3):
        cql.execute(f"UPDATE {table} SET note = 'note {pk}' WHERE pk = {pk}")
    cql.execute(f"UPDATE {table} SET note = 'static only' WHERE pk = 77")
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": f"data-{table}"}
    target = str(tmp_path / "mirror")
    topic_url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/data-{table}/partitions"
    wait_until(lambda: httpx.get(topic_url).is_success, "the first record")
    deadline = time.monotonic() + 120
    wanted = [row._asdict() for row in cql.execute(f"SELECT * FROM {table}")]
    while True:
        mirror(spark, options, target)
        rows = spark.read.format("delta").load(f"{target}/rows")
        rows = rows.drop(*[name for name in rows.columns if name.startswith("_cdc")])
        unequal = differences(table, ["pk", "at"], wanted, [row.asDict(recursive=True) for row in rows.collect()])
        if not unequal or time.monotonic() > deadline:
            break
    assert unequal == []

    connector.delete()  # what comes now reaches no topic
    chosen = random.Random(20261121).sample(range(_ROWS), 66)
    deleted, updated, added = chosen[:33], chosen[33:], range(_ROWS, _ROWS + 34)
    for number in deleted:
        cql.execute(f"DELETE FROM {table} {where(number)}")
    for number in updated:
        cql.execute(f"UPDATE {table} SET amount = 0.001, tags = tags + {{'planted'}} {where(number)}")
    for number in added:
        cql.execute(insert(table, number, "planted"))
    access = CassandraAccess(
        contact_points=(cassandra_node.address,), port=cassandra_node.native_port, consistency="ONE"
    )
    for against in (None, target):
        report = verify(spark, options, access, keyspace, "planted", mirror_target=against, ranges=3, settle_s=1)
        found = report.differences
        assert keys(found, "missing") == sorted(map(key, added))
        assert keys(found, "extra") == sorted(map(key, deleted))
        assert keys(found, "differing") == sorted(map(key, updated))
        assert {each.columns for each in found if each.kind == "differing"} == {("amount", "tags")}
        assert (report.rows, report.unsettled) == (_ROWS + 1 + 34 - 33, 0)


def test_a_backfill_that_was_killed_goes_on_and_leaves_no_difference(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    open_events_writer: OpenEventsWriter,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Rows of a table that was never captured reach the topic, each range once, over a run that ended early."""
    url = f"{pulsar.admin_url}/admin/v2/namespaces/public/default/retention"
    httpx.post(url, json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).raise_for_status()
    table = f"{keyspace}.old"
    cql.execute(f"CREATE TABLE {table} (pk int, at text, v int, note text static, PRIMARY KEY (pk, at))")
    for number in range(_ROWS):
        cql.execute(f"INSERT INTO {table} (pk, at, v) VALUES ({number % 50}, 'at {number}', {number})")
    cql.execute(f"UPDATE {table} SET note = 'static only' WHERE pk = 77")
    open_events_writer(keyspace, "old")  # makes the events topic, as an agent does
    deploy_connector(keyspace, "old")
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": f"data-{table}"}
    access = CassandraAccess(
        contact_points=(cassandra_node.address,), port=cassandra_node.native_port, consistency="ONE"
    )
    progress = str(tmp_path / "progress.json")

    def stop(done: int, ranges: int, rows: int) -> None:
        raise KeyboardInterrupt

    planned = backfill(spark, options, access, keyspace, "old", ranges=4, dry_run=True)
    assert planned.rows == _ROWS + 1
    with pytest.raises(KeyboardInterrupt):
        backfill(spark, options, access, keyspace, "old", ranges=4, progress_file=progress, on_progress=stop)
    rest = backfill(spark, options, access, keyspace, "old", ranges=4, progress_file=progress)
    assert (rest.ranges_before, rest.ranges) == (2, 2)
    assert 0 < rest.rows < _ROWS
    topic_url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/data-{table}/partitions"
    wait_until(lambda: httpx.get(topic_url).is_success, "the first record")
    report = verify(spark, options, access, keyspace, "old", ranges=2, settle_s=60)
    assert (report.rows, report.differences, report.unsettled) == (_ROWS + 1, (), 0)
