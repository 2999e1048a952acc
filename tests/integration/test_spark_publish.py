"""The job `publish` on real topics: rows and changes of a mirror for consumers that do not know the folding rules."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pulsar as pulsar_client
import pytest
from pyspark.sql import DataFrame, SparkSession

from clients.admin_client import topic_path
from schemas.errors import ConfigError
from schemas.row_record import AvroSchema
from spark_bridge import raw_batch, typed
from spark_bridge.errors import PublishError
from spark_bridge.jobs.batch_session import session_of_its_own
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.publish import PublishSummary, publish, topic_beside
from spark_bridge.jobs.publish_state import Kind
from spark_bridge.spark_line import LINE
from spark_bridge.topics.keyed_producer import KeyedProducer, KeyedRecord, KeyValueSchema
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.publish_admin import PublishAdmin
from tests.fault_kit.proxy import Proxy
from tests.fixtures.mirror import Mirror, MirrorOf
from tests.fixtures.spark import DataTopic, MakeTopic, Record, killed_driver, table_schemas
from tests.servers.interface import PulsarServer
from tests.spark.environment import line_jars
from tests.topics.client import client_of
from tests.topics.events_topic import wait_until
from tests.topics.table_records import (
    OLD,
    PLAIN,
    WIDE,
    partition_deletion,
    range_deletion,
    row,
    row_deletion,
    static_row,
)

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]
BOTH: Mapping[Kind, None] = {"rows": None, "changes": None}
_MANY_RECORDS = 4_500
NODE = "01234567-89ab-4cde-8f01-23456789abcd"


class Published:
    """The topics that `publish` writes for a mirror."""

    def __init__(self, spark: SparkSession, topic: DataTopic, kept: Mirror) -> None:
        self.spark = spark
        self.topic = topic
        self.kept = kept

    def run(self, topics: Mapping[Kind, str | None] = BOTH, **more: Any) -> PublishSummary:
        return publish(self.spark, self.topic.options, str(self.kept.folder), topics, **more)

    def options(self, kind: Kind) -> dict[str, str]:
        return {**self.topic.options, "topic": topic_beside(self.topic.name, kind)}

    def records(self, kind: Kind) -> DataFrame:
        """Typed records, with their position in the topic partition."""
        return typed(raw_batch(self.spark, self.options(kind)), self.options(kind))

    def folded(self) -> list[str]:
        """The rows that remain when the last record of a key wins, as in a keyed sink."""
        found: dict[str, str] = {}
        rows = self.records("rows").selectExpr(
            "to_json(key) k", "to_json(struct(key.*, value.*)) v", "op", "message_id"
        )
        for each in sorted(rows.collect(), key=lambda each: place(each.message_id)):
            found.pop(each.k, None)
            if each.op == "u":
                found[each.k] = each.v
        return sorted(found.values())

    def replayed(self) -> tuple[list[str], list[str]]:
        """The rows after all changes, and the `op` of each change; checks that each `before` is the last `after`."""
        found: dict[str, str | None] = {}
        ops = []
        told = self.records("changes").selectExpr(
            "to_json(key) k", "value.op op", "to_json(value.before) b", "to_json(value.after) a", "message_id"
        )
        for each in sorted(told.collect(), key=lambda each: place(each.message_id)):
            assert each.b == found.get(each.k), each
            assert (each.b is None) == (each.op in "cr"), each
            found[each.k] = each.a
            ops.append(each.op)
        return sorted(each for each in found.values() if each is not None), ops

    def sources(self, key: str) -> dict[tuple[str, str], set[tuple[object, ...]]]:
        """Node, segment, position, table id and snapshot of the changes, by `op` and a column of their rows."""
        told = self.records("changes").selectExpr(
            "value.op op", f"string(coalesce(value.after.{key}, value.before.{key})) k", "value.source.*"
        )
        found: dict[tuple[str, str], set[tuple[object, ...]]] = {}
        for each in told.collect():
            found.setdefault((each.op, each.k), set()).add(
                (each.node, each.segment, each.pos, each.table_id, each.snapshot)
            )
        return found


def written_at(position: int, record: Record) -> Record:
    """The record with segment 7 of a node as the source of its change."""
    return replace(record, properties={**record.properties, "node": NODE, "segpos": f"7:{position}"})


def backfilled(record: Record) -> Record:
    """The record as the connector publishes it for a backfill."""
    return replace(record, properties={**record.properties, "node": NODE, "segpos": "-2:1", "snapshot": "true"})


@contextmanager
def following(topic: DataTopic, kept: Mirror, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """`cdc spark publish --follow` of both topics: the process, and the files of its output and its errors."""
    service, admin = (topic.options[name] for name in ("serviceUrl", "adminUrl"))
    where = ["--service-url", service, "--admin-url", admin, "--topic", topic.name]
    jars = [part for jar in line_jars(LINE) for part in ("--jars", str(jar))]
    what = ["--target", str(kept.folder), "--rows", "--changes", "--follow", "0.5"]
    publish = [sys.executable, "-m", "cdc.main", "spark", "publish"]
    command = [*publish, *where, *what, "--master", "local[1]", *jars]
    folder.mkdir()
    files = folder / "output", folder / "errors"
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
    try:
        yield process, *files
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def place(message_id: str) -> tuple[int, ...]:
    """Partition, ledger, entry and index of a message id."""
    ledger, entry, partition, *index = map(int, message_id.split(":"))
    return (partition, ledger, entry, *index)


def test_rows_folded_and_changes_replayed_are_the_table(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Folded rows and replayed changes equal the table after inserts, each kind of deletion, expiry and static changes.

    A state that was restored from a copy is refused: the broker would drop new records that have the numbers of earlier
    ones.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    passing = row("p4", 99, "b", 1)
    ends = {"expires_at": str(int(time.time()) + 2)}
    topic.write(
        static_row("p0", s="static", t=1),
        *[row(f"p{n % 5}", n, "b", n, **({"s": "static", "t": 1} if n % 5 == 0 else {})) for n in range(40)],
        replace(passing, properties={**passing.properties, **ends}),
    )
    kept.run(history=False)
    published.run()
    shutil.copytree(kept.folder / "published", tmp_path / "copy")
    topic.write(
        written_at(10, row_deletion("p1", 1, "b")),
        row("p1", 6, "b", 60),
        row("p1", 6, "b", 61),
        row("p1", 50, "b", 1),
        row_deletion("p1", 50, "b"),
        written_at(20, partition_deletion("p2")),
        written_at(30, range_deletion("p3", start={"a": 10})),
        written_at(40, static_row("p0", s="other", t=None)),
        backfilled(row("old", 1, "b", 1)),
    )
    kept.run(history=False)
    published.run()
    assert published.folded() == kept.rows()
    rows, ops = published.replayed()
    assert rows == kept.rows() != []
    # Inserts: 41 first rows, p1/50 and the backfilled row. Updates: p0's eight rows and p1/6 twice. Deletions: p1/1,
    # p1/50, eight of p2, six of p3 and the expired row.
    assert {op: ops.count(op) for op in "cudr"} == {"c": 43, "u": 10, "d": 17, "r": 0}
    nowhere = (None, None, None, OLD, "false")
    sources = published.sources("pk")
    assert sources["d", "p1"] == {(NODE, 7, 10, OLD, "false"), nowhere}
    assert [sources[each] for each in (("d", "p2"), ("d", "p3"), ("u", "p0"))] == [
        {(NODE, 7, position, OLD, "false")} for position in (20, 30, 40)
    ]
    assert sources["u", "p1"] == {nowhere}
    assert sources["c", "old"] == {(None, None, None, OLD, "true")}
    assert sources["d", "p4"] == {(None, None, None, None, "false")}  # No record describes an expiry.
    assert published.records("changes").count() == kept.table("changes").count()
    _expect_the_epoch_of_the_topic_behind(published)
    shutil.rmtree(kept.folder / "published")
    shutil.copytree(tmp_path / "copy", kept.folder / "published")
    restored = r"it has changes of epoch \d+, .* has sent none behind epoch \d+: the mirror was restored from a copy; .* --rebuild"
    with pytest.raises(PublishError, match=restored):
        published.run()


def _expect_the_epoch_of_the_topic_behind(published: Published) -> None:
    """Check that nothing is sent twice when the mirror continues after `rows-` is done: only `changes-` gets the new
    record and its epoch."""
    kept, reached = published.kept, published.kept.applied().epoch
    rows, changes = (topic_beside(published.topic.name, kind) for kind in BOTH)

    def mirror_more(topic: str, records: int, epoch: int) -> None:
        if topic == rows:
            published.topic.write(row("late", 1, "b", 1))
            kept.run(history=False)

    last = published.run(on_batch=mirror_more)
    assert (last.records, last.epoch) == ({rows: 0, changes: 1}, reached)
    assert kept.applied().epoch == reached + 1


@pytest.mark.extended
@pytest.mark.spark_line("==4.1")
def test_an_iceberg_mirror_is_published_and_a_log_of_an_earlier_version_too(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """The change log of an earlier version has no sources of changes; the mirror's next run adds the column."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    topic.write(*[written_at(n, Record(key={"id": n}, value={"name": "a"})) for n in range(3)])
    kept.run(history=False, table_format="iceberg")
    log = MirrorTables(spark, str(kept.folder)).changes
    assert isinstance(log, IcebergTable)
    log.drop_columns(["source"])
    published.run()
    topic.write(
        written_at(10, Record(key={"id": 0}, value={"name": "b"})),
        written_at(11, Record(key={"id": 1})),
        written_at(12, Record(key={"id": 3}, value={"name": "c"})),
    )
    kept.run(history=False)
    published.run()
    assert published.folded() == kept.rows() != []
    rows, ops = published.replayed()
    assert (rows, sorted(ops)) == (kept.rows(), ["c", "c", "c", "c", "d", "u"])
    nowhere = {(None, None, None, None, "false")}
    assert published.sources("id") == {
        **{("c", str(n)): nowhere for n in range(3)},
        **{at: {(NODE, 7, n, None, "false")} for at, n in {("u", "0"): 10, ("d", "1"): 11, ("c", "3"): 12}.items()},
    }


@pytest.mark.extended
def test_a_killed_job_goes_on_and_each_change_stands_once(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """A job is killed with -9, and another one follows the mirror until SIGTERM. A foreign writer is refused, and a
    rebuild sends all rows again."""
    topic = data_topic(*PLAIN, partitions=2)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    large = "x" * 4_000
    topic.write(*[Record(key={"id": n % 200}, value={"name": f"{n} {large}"}) for n in range(600)])
    kept.run(history=False)
    arguments = {"options": topic.options, "target": str(kept.folder), "kind": "changes", "rows": 60}
    assert killed_driver("publish", "local[1]", arguments, tmp_path / "driver", jars=line_jars(LINE)) == -9
    stored = published.records("changes").count()
    assert 0 < stored < 600
    to_rows, to_changes = (published.options(kind)["topic"] for kind in BOTH)
    with following(topic, kept, tmp_path / "following") as (process, output, errors):

        def wait_for(rows: int, changes: int) -> None:
            end = f"records, up to epoch {kept.applied().epoch}"
            lines = [f"{to_rows}: {rows} {end}", f"{to_changes}: {changes} {end}"]
            wanted = [each.removeprefix("persistent://") for each in lines]

            def is_there() -> bool:
                assert process.poll() is None, errors.read_text()
                return set(wanted) <= set(errors.read_text().splitlines())

            wait_until(is_there, f"the lines {wanted}", 600)

        wait_for(200, 600 - stored)
        topic.write(Record(key={"id": 0}, value={"name": "while it follows"}))
        kept.run(history=False)
        wait_for(1, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0, errors.read_text()
        assert f"201 records to {to_rows}, {601 - stored} records to {to_changes}, up to" in output.read_text()
    assert published.folded() == kept.rows()
    assert published.records("rows").count() == 201
    rows, ops = published.replayed()
    assert rows == kept.rows()
    assert {op: ops.count(op) for op in "cu"} == {"c": 200, "u": 401}

    foreign = replace(topic, name=published.options("rows")["topic"])
    foreign.write(Record(key={"id": -1}, value={"name": "of somebody else"}))
    with pytest.raises(PublishError, match=r"somebody else writes to it: the last record of .* --rebuild"):
        published.run()
    assert published.folded() != kept.rows()
    published.run({"rows": None}, rebuild=True)
    assert published.folded() == kept.rows()
    assert set(published.run().records.values()) == {0}


@pytest.mark.extended
def test_a_run_after_a_rebuild_goes_on_where_a_partition_has_no_record_of_the_rebuild(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """All rows of one partition are deleted, so its last record is of the earlier producer: it is not taken for a
    foreign one."""
    topic = data_topic(*PLAIN, partitions=2)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    topic.write(*[Record(key={"id": number}, value={"name": "a"}) for number in range(8)])
    kept.run(history=False)
    published.run()
    topic.write(*[Record(key={"id": number}) for number in range(1, 8)])
    kept.run(history=False)
    published.run(rebuild=True)
    assert set(published.run().records.values()) == {0}
    assert published.folded() == kept.rows()


@pytest.mark.extended
def test_a_rebuild_has_nothing_of_a_column_before_it_was_dropped_and_added_again(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """The row was not written since, so its last value in the change log is the old one. The same holds after a rebuild
    of the mirror."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    topic.write(*[Record(key={"id": number}, value={"name": "old"}) for number in range(2)])
    kept.run(history=False)
    published.run()
    _, dropped = table_schemas(partition_key={"id": "int"}, regular={"size": "int"})
    _, again = table_schemas(partition_key={"id": "int"}, regular={"size": "int", "name": "text"})
    topic.write(Record(key={"id": 2}, value={"size": 2}), value_schema=dropped)
    topic.write(Record(key={"id": 3}, value={"name": "new"}), value_schema=again)
    kept.run(history=False)
    for is_rebuilt in (False, True):
        if is_rebuilt:
            kept.run(history=False, rebuild=True)
        published.run(rebuild=True)
        assert list(map(json.loads, published.folded())) == list(map(json.loads, kept.rows()))
        assert '"old"' not in "".join(published.folded())
        rebuilt = published.records("changes").where("value.op = 'r'").selectExpr("value.after.name").collect()
        assert {row.name for row in rebuilt} == {None, "new"}


def test_old_dates_are_published_whatever_calendar_the_session_has(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """With these settings, the defaults of Spark 3.5, Spark refuses to write dates before 1582. The change log is
    switched on later."""
    users = session_of_its_own(spark)
    for each in ("avro", "parquet"):
        users.conf.set(f"spark.sql.{each}.datetimeRebaseModeInWrite", "EXCEPTION")
    topic = data_topic(*table_schemas(partition_key={"id": "int"}, regular={"day": "date", "at": "timestamp"}))
    first_day = -719_162  # 0001-01-01
    topic.write(Record(key={"id": 1}, value={"day": first_day, "at": first_day * 86_400_000}))
    kept = Mirror(users, topic, tmp_path / "mirror", {})
    published = Published(users, topic, kept)
    kept.run(changelog=False, history=False)
    kept.run()
    published.run()
    assert published.folded() == kept.rows() == kept.replayed() == kept.open_versions()
    assert '"day":"0001-01-01"' in published.folded()[0]
    assert users.conf.get("spark.sql.avro.datetimeRebaseModeInWrite") == "EXCEPTION"


def test_a_mirror_without_a_change_log_and_a_held_topic_are_told_in_one_line(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """Nothing is published, and no state is stored."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    with pytest.raises(ConfigError, match="keeps no change log, from which publish reads; run cdc spark changelog"):
        Published(spark, topic, kept).run()
    assert not (kept.folder / "published").exists()
    first = BridgeOptions.from_mapping(topic.options)
    second = BridgeOptions.from_mapping({**topic.options, "operationTimeoutSeconds": "30"})
    schema = KeyValueSchema.of(*map(cast_schema, PLAIN))
    with (
        KeyedProducer(first, topic.name, "first", schema),
        pytest.raises(
            PublishError, match=r"somebody else writes to it \(Topic has an existing exclusive producer: first\)"
        ),
    ):
        KeyedProducer(second, topic.name, "second", schema)


def test_what_a_lost_connection_leaves_open_is_sent_again_and_stands_once(
    data_topic: MakeTopic, pulsar: PulsarServer
) -> None:
    """Connections are cut within frames and before the broker's receipts: each record is on the topic once, in
    order."""
    topic = data_topic(*PLAIN)
    where = urlsplit(pulsar.service_url)
    assert where.hostname is not None and where.port is not None
    beside = where.hostname[:-1] + str((int(where.hostname[-1]) + 1) % 10)  # frames keep their sizes
    both = tuple(f"{host}:{where.port}".encode() for host in (where.hostname, beside))
    options = BridgeOptions.from_mapping({**topic.options, "serviceUrl": f"pulsar://{beside}:{where.port}"})
    with PublishAdmin(options) as admin:
        assert admin.deduplicate(topic.name, [topic.name]) is None
    schema = KeyValueSchema.of(*map(cast_schema, PLAIN))
    with (
        Proxy((beside, where.port), (where.hostname, where.port), (both[0], both[1])) as proxy,
        KeyedProducer(options, topic.name, "job-0", schema) as producer,
    ):
        for number in range(_MANY_RECORDS):
            if number % 1_000 == 10:  # Some records are in flight when the connection is lost.
                with (cut_once if number % 2_000 == 10 else lose_receipts)(proxy):
                    producer.flush()
            producer.send(KeyedRecord(number, b"k", b"v", None, {"n": str(number)}))
        producer.flush()
        assert producer.sent == _MANY_RECORDS
    found = []
    with client_of(pulsar.service_url) as client:
        reader = client.create_reader(topic.name, pulsar_client.MessageId.earliest)
        while reader.has_message_available():
            found.append(int(reader.read_next(60_000).properties()["n"]))
    assert found == list(range(_MANY_RECORDS))


def test_records_that_the_broker_lost_after_it_had_counted_them_end_the_run(data_topic: MakeTopic) -> None:
    """A producer skips what the broker has counted. When it connects again, the broker may know fewer records."""
    topic = data_topic(*PLAIN)
    options = BridgeOptions.from_mapping(topic.options)
    with PublishAdmin(options) as admin:
        assert admin.deduplicate(topic.name, [topic.name]) is None
    schema = KeyValueSchema.of(*map(cast_schema, PLAIN))
    with KeyedProducer(options, topic.name, "job-0", schema) as producer:
        producer.send(KeyedRecord(9, b"k", b"v", None, {}))
    producer = KeyedProducer(options, topic.name, "job-0", schema)
    assert producer.last_number == 9
    producer.last_number = 20  # as if ten more were on their way to the bookies
    producer.send(KeyedRecord(21, b"k", b"v", None, {}))
    producer._drop()
    with pytest.raises(PublishError, match="up to number 20, and has lost those after 9; run again"):
        producer.flush()


@contextmanager
def cut_once(proxy: Proxy) -> Iterator[None]:
    """Cut the next connection that sends anything, and none after it."""
    before = proxy.connections_cut

    def heal() -> None:
        wait_until(lambda: proxy.connections_cut > before, "a connection is cut")
        proxy.heal()

    with ThreadPoolExecutor(1) as pool:
        proxy.cut()
        healed = pool.submit(heal)
        yield
        healed.result()


@contextmanager
def lose_receipts(proxy: Proxy) -> Iterator[None]:
    """Lose the connection after the broker has received the records, and before its receipts arrive."""

    def lose() -> None:
        time.sleep(1.5)
        proxy.go_away()
        proxy.heal()

    with ThreadPoolExecutor(1) as pool:
        proxy.delay(1.0)
        lost = pool.submit(lose)
        yield
        lost.result()


def cast_schema(schema: AvroSchema) -> Mapping[str, object]:
    """The schema with the type of the registry's parsed JSON."""
    return cast("Mapping[str, object]", schema)


@pytest.mark.extended
def test_a_topic_whose_records_were_all_read_is_no_other_topic(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic, pulsar: PulsarServer
) -> None:
    """Pulsar deletes what the only subscription has read. When it has loaded the topic again, it has no last record."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    published = Published(spark, topic, kept)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    kept.run(history=False)
    published.run({"rows": None})
    options = BridgeOptions.from_mapping(published.options("rows"))
    with client_of(pulsar.service_url) as client:
        consumer = client.subscribe(options.only_topic, "sink", initial_position=pulsar_client.InitialPosition.Earliest)
        consumer.acknowledge_cumulative(consumer.receive(60_000))
    with PublishAdmin(options) as admin:
        (partition,) = admin.partitions_of(options.only_topic)
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin._call("POST", options.only_topic, f"{topic_path(options.only_topic)}/retention", nothing)

        def is_empty() -> bool:
            admin._call("PUT", partition, f"{topic_path(partition)}/unload")
            return admin.last_position(partition).entry < 0

        wait_until(is_empty, "the topic has no last record")
    topic.write(Record(key={"id": 2}, value={"name": "b"}))
    kept.run(history=False)
    assert published.run({"rows": None}).records == {options.only_topic: 1}
