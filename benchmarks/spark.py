"""Measures the Spark bridge: raw read and typed decode, the mirror, the backfill, and how they grow.

    python -m benchmarks.spark [--rows 1000000] [--stages read,mirror,backfill,growth,small] [--growth 100000,1000000] [--json]

The stages:

- `read` scans the same records completely and drops them: raw; raw and typed; and both by the pulsar-spark connector on
  PySpark 3.5, which Spark's users have without us. A tenth of the records are deletions.
- `bounds` is a read without a broker: the same rows from Python's memory, and `from_avro` over bytes that Spark has
  cached.
- `mirror` is a mirror of the whole backlog.
- `backfill` reads a table's keys from a real Cassandra and sends its events.
- `changes` runs a mirror for each size, then micro-batches of 1,000 records of rows all over the table. It counts what
  Spark reads and writes for them. `growth` runs the reads, then the same.
- `small` runs a mirror of 20,000 records and micro-batches of 1,000, and the job that a user would write by hand
  (benchmarks/spark_small.py).

Memory is the largest PSS of the driver (this process, Spark's JVM and its Python workers together). The machine also
runs the servers, so each line has the load average.
"""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Final

import click
from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import SparkSession

from benchmarks.spark_bounds import COLUMNS, CONNECTOR_RAW, CONNECTOR_TYPED, connector_scans, from_memory
from benchmarks.spark_meter import Measured, Traffic, scan, timed
from benchmarks.spark_session import bench_session
from benchmarks.spark_small import small_stage
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions, artifacts
from schemas.row_record import record_writer, schema_text
from spark_bridge import raw_batch, typed
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.mirror import mirror
from tests.fixtures.spark import RecordWriter, keep_everything, table_schemas
from tests.fixtures.spark35 import Spark35
from tests.spark.environment import ensure_python, line_jars

_NAMESPACE: Final = "public/benchmark"
_KEY, _VALUE = table_schemas(
    partition_key={"id": "bigint"},
    regular={"name": "text", "note": "text", "amount": "bigint", "at": "timestamp", "price": "double", "who": "uuid"},
)
_WRITTEN_AT_ONCE: Final = 20_000
_ENTRY_ROWS: Final = 500
_SMALL_ROWS: Final = 20_000
_RAW, _TYPED = "raw read", "raw read and typed decode"
_CHANGED_ROWS: Final = 1_000
_CHANGES: Final = 4


class Topics:
    """Data topics; a tenth of their records are deletions of earlier rows."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._updates = 0
        keep_everything(sandbox.pulsar, _NAMESPACE)
        self._writer = RecordWriter(sandbox.pulsar.service_url, folder)

    def of(self, rows: int) -> dict[str, str]:
        """Create a topic of two partitions with `rows` records, and return the options to read it."""
        name = f"persistent://{_NAMESPACE}/data-{rows}-{time.time_ns()}"
        pulsar = self._sandbox.pulsar
        path = f"{pulsar.admin_url}/admin/v2/{name.replace('://', '/')}/partitions"
        rest().put(path, json=2).raise_for_status()
        self._write(name, ((number - 5 * _is_deletion(number), number) for number in range(rows)))
        return {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": name, "minPartitions": "4"}

    def more(self, options: Mapping[str, str], updates: int, rows: int = 20_000) -> None:
        """Write `updates` further records of rows all over the first `rows`. A tenth are deletions, some of deleted
        rows."""
        self._updates += updates
        self._write(
            options["topic"],
            (
                (number * 7_368_787 % rows, 1_000_000_000 + number)
                for number in range(self._updates, self._updates + updates)
            ),
        )

    def _write(self, name: str, numbers: Iterable[tuple[int, int]]) -> None:
        """Write records, given as the number of the key and the number of the change."""
        write_key, write_value = record_writer(_KEY), record_writer(_VALUE)
        numbers = iter(numbers)
        while part := list(islice(numbers, _WRITTEN_AT_ONCE)):
            messages = []
            for key_number, number in part:
                value = None if _is_deletion(number) else base64.b64encode(write_value(_row(number))).decode()
                key = base64.b64encode(write_key({"id": key_number})).decode()
                properties = {"writetime": str(1_795_000_000_000_000 + number), "kind": "row"}
                messages.append({"key": key, "value": value, "properties": properties})
            self._writer.write_bytes(name, schema_text(_KEY), schema_text(_VALUE), messages, batch=_ENTRY_ROWS)

    def close(self) -> None:
        """End the writer."""
        self._writer.close()


def _is_deletion(number: int) -> bool:
    return number % 10 == 9


def _row(number: int) -> dict[str, str | int | float]:
    """The values of a row, about 200 bytes of Avro."""
    return {
        "name": f"customer number {number}",
        "note": "what a clerk would write beside it, " * 3,
        "amount": number * 7919,
        "at": 1_795_000_000_000 + number,
        "price": number / 7,
        "who": f"00000000-0000-4000-8000-{number:012d}",
    }


def read_stage(spark: SparkSession, options: dict[str, str], rows: int) -> Iterator[Measured]:
    """Read raw, raw and typed, and the same by the pulsar-spark connector, in the environment of PySpark 3.5. All are
    warm."""
    raw = raw_batch(spark, options)
    scan(typed(raw, options).select(*COLUMNS))
    yield timed(_RAW, rows, lambda: scan(raw))
    yield timed(_TYPED, rows, lambda: scan(typed(raw, options).select(*COLUMNS)))
    yield from connector_scans(ensure_python("3.5"), Spark35.environment(), line_jars("3.5"), options, rows)


def bounds_stage(spark: SparkSession, options: dict[str, str], rows: int, folder: Path) -> Iterator[Measured]:
    """Read without a broker: rows from Python's memory, and `from_avro` over bytes that Spark has cached."""
    raw = raw_batch(spark, options)
    memory = from_memory(spark, raw, folder)
    scan(typed(memory, options).select(*COLUMNS))
    yield timed("the same rows, Python's memory", rows, lambda: scan(memory))
    yield timed("the same and typed decode", rows, lambda: scan(typed(memory, options).select(*COLUMNS)))
    cached = raw.persist()
    scan(cached)
    scan(typed(cached, options).select(*COLUMNS))
    yield timed("from_avro alone, cached bytes", rows, lambda: scan(typed(cached, options).select(*COLUMNS)))
    cached.unpersist(blocking=True)


def mirror_stage(spark: SparkSession, options: dict[str, str], rows: int, folder: Path) -> Iterator[Measured]:
    """Mirror the whole backlog to a new Delta table."""
    target = str(folder / f"mirror-{time.time_ns()}")
    yield timed("mirror of a backlog", rows, lambda: mirror(spark, options, target))


def changes_stage(
    spark: SparkSession, topics: Topics, options: dict[str, str], rows: int, folder: Path
) -> Iterator[Measured]:
    """Mirror the whole backlog to a new Delta table, then micro-batches of 1,000 records of rows all over the table."""
    target = str(folder / f"mirror-{time.time_ns()}")
    yield timed("mirror of a backlog", rows, lambda: mirror(spark, options, target))
    for _ in range(_CHANGES):
        topics.more(options, _CHANGED_ROWS, rows)
        with Traffic(spark) as traffic:
            stage = f"micro-batch, {rows:,} rows mirrored"
            measured = timed(stage, _CHANGED_ROWS, lambda: mirror(spark, options, target))
        yield replace(
            measured, read_bytes=traffic.read_bytes, read_rows=traffic.read_rows, written_bytes=traffic.written_bytes
        )


def backfill_stage(spark: SparkSession, sandbox: Sandbox, rows: int) -> Iterator[Measured]:
    """Read keys from Cassandra and send their events. The connector's part is measured by `make bench-connector`."""
    node, pulsar = sandbox.node, sandbox.pulsar
    topic = "persistent://public/default/cdc-events-bench.rows"
    path = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}"
    rest().put(f"{path}/partitions", json=4).raise_for_status()
    rest().put(f"{path}/subscription/sub", json={"ledgerId": -1, "entryId": -1}).raise_for_status()
    with Cluster([node.address], port=node.native_port) as cluster:
        session = cluster.connect()
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        session.execute("CREATE TABLE bench.rows (pk text, ck int, a text, b text, c bigint, PRIMARY KEY (pk, ck))")
        insert = session.prepare("INSERT INTO bench.rows (pk, ck, a, b, c) VALUES (?, ?, ?, ?, ?)")
        values = ((f"customer {n // 10}", n % 10, f"name {n}", "note " * 20, n) for n in range(rows))
        execute_concurrent_with_args(session, insert, values, concurrency=100, results_generator=False)
    access = CassandraAccess(contact_points=(node.address,), port=node.native_port, consistency="ONE")
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url}
    yield timed(
        "backfill, keys to events topic", rows, lambda: backfill(spark, options, access, "bench", "rows", ranges=16)
    )


def _ratios(measured: Sequence[Measured]) -> dict[str, float]:
    """The rates of our reads divided by those of the pulsar-spark connector, over the same records in the same run."""
    seconds = {each.stage: each.seconds for each in measured}
    return {
        ours: seconds[theirs] / seconds[ours] for ours, theirs in ((_RAW, CONNECTOR_RAW), (_TYPED, CONNECTOR_TYPED))
    }


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, type=click.IntRange(1000), help="Records of each stage.")
@click.option(
    "--stages",
    default="read,mirror,backfill",
    show_default=True,
    help="With commas; bounds, growth, changes and small, too.",
)
@click.option("--growth", default="100000,1000000,10000000", show_default=True, help="Sizes of growth and changes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def main(*, rows: int, stages: str, growth: str, as_json: bool) -> None:
    """Print a line for each thing measured, and what the reads are beside those of the pulsar-spark connector."""
    chosen = stages.split(",")
    jars = [*artifacts.ensure("spark-avro"), *artifacts.ensure("spark-delta")]

    def tell(measured: list[Measured]) -> None:
        for each in measured:
            click.echo(json.dumps(asdict(each)) if as_json else each.line)

    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as name,
        Sandbox(SandboxOptions(nodes=1 if "backfill" in chosen else 0, commitlog_segment_mb=32)) as sandbox,
        bench_session(jars, Path(name), delta=True) as spark,
    ):
        topics = Topics(sandbox, Path(name))
        if "small" in chosen:
            for each in small_stage(spark, topics.of, topics.more, _SMALL_ROWS, Path(name)):
                tell([each])
        sizes = [rows] if {"read", "bounds", "mirror"} & set(chosen) else []
        sizes += [int(each) for each in growth.split(",")] if {"growth", "changes"} & set(chosen) else []
        for size in sizes:
            options = topics.of(size)
            if "read" in chosen or "growth" in chosen:
                measured = list(read_stage(spark, options, size))
                tell(measured)
                ratios = _ratios(measured)
                for stage, ratio in ratios.items():
                    click.echo(
                        json.dumps({"stage": stage, "ratio": ratio})
                        if as_json
                        else f"{stage}: {ratio:.2f} times the rate of the pulsar-spark connector"
                    )
            if "bounds" in chosen:
                tell(list(bounds_stage(spark, options, size, Path(name))))
            if {"growth", "changes"} & set(chosen):
                for each in changes_stage(spark, topics, options, size, Path(name)):
                    tell([each])
            elif "mirror" in chosen:
                tell(list(mirror_stage(spark, options, size, Path(name))))
        if "backfill" in chosen:
            tell(list(backfill_stage(spark, sandbox, rows)))
        topics.close()


if __name__ == "__main__":
    main()
