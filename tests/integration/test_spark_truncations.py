"""Truncations and drops in Spark: the current table, a mirror with all its tables, and the published topics."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from schemas.row_record import schema_text
from source_connector.events.pulsar_access import schema_of_bytes
from source_connector.tables.clearing_record import ClearingRecord, DataPosition
from source_connector.tables.schema_changes import SCHEMA_CHANGE_SCHEMA, SchemaChange
from source_connector.tables.table_definition import TableDefinition
from spark_bridge.jobs.latest import latest_on_read
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.mirror import Mirror, MirrorOf, stopped_after, texts
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.integration.test_spark_publish import Published
from tests.topics.client import client_of
from tests.topics.table_records import NEW, OLD, WIDE, row, static_row

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]
FIRST_MS, SECOND_MS = 1_700_000_000_000, 1_700_000_100_000
DROP_MS = 4_000_000_000_000
"""In the year 2096: before that time, the table still has its rows."""
FUTURE_US = 4_100_000_000_000_000


def written(record: Record, time_us: int, table_id: str = OLD) -> Record:
    return replace(record, properties={**record.properties, "writetime": str(time_us), "table_id": table_id})


def before(time_ms: int, record: Record) -> Record:
    return written(record, time_ms * 1_000 - 1)


def records_before(time_ms: int) -> list[Record]:
    """Five rows that a truncation at that time deletes, and one with a later write time."""
    return [
        *[before(time_ms, row(f"p{n}", 1, "x", n, s="s", t=1)) for n in range(4)],
        before(time_ms, static_row("alone", s="static", t=1)),
        written(row("future", 1, "x", 9), FUTURE_US),
    ]


def keys(lines: list[str]) -> list[str]:
    """Partition key, clustering and value of rows as JSON."""
    found = [json.loads(each) for each in lines]
    return sorted(f"{each['pk']}/{each.get('a')}={each.get('v')}" for each in found)


class ClearedTopic:
    """A data topic whose table is truncated and dropped. `topic` names a topic of schema changes of its own, which the
    first clearing makes."""

    def __init__(self, topic: DataTopic, client: pulsar.Client) -> None:
        self._client = client
        self._changes = f"{topic.name}-changes"
        self.topic = replace(topic, options={**topic.options, "schemaChangesTopic": self._changes})

    def clear(self, kind: str, time_ms: int, table_id: str = OLD) -> None:
        """Publish a truncation or a drop after all existing records, as the connector does."""
        clearing = ClearingRecord(
            kind=kind,
            table_id=table_id,
            table_generation=None,
            time_ms=time_ms,
            nodes=[{"node": "n", "segment_id": 1, "position": time_ms, "time_ms": time_ms}],
            data_topic=self.topic.name,
            positions=self._positions(),
        )
        self._publish(["table cleared"], time_ms, None, clearing)

    def define(self, time_ms: int, table_id: str) -> None:
        """Publish the definition of a table that was created, as the connector does."""
        made: TableDefinition = {"table_id": table_id, "columns": [], "types": []}
        self._publish(["table created, or seen for the first time"], time_ms, made, None)

    def _publish(
        self, changes: list[str], time_ms: int, new: TableDefinition | None, clearing: ClearingRecord | None
    ) -> None:
        change = SchemaChange(
            keyspace="shop",
            table="t",
            time_ms=time_ms,
            changes=changes,
            old=None,
            new=new,
            clearing=clearing,
        )
        schema = schema_of_bytes("JSON", "SchemaChange", schema_text(SCHEMA_CHANGE_SCHEMA))
        producer = self._client.create_producer(self._changes, schema=schema)
        producer.send(b"no record at all", partition_key="shop.other")
        producer.send(json.dumps(change).encode(), partition_key="shop.t")
        producer.close()

    def _positions(self) -> list[DataPosition | None]:
        with PulsarAdmin(BridgeOptions.from_mapping(self.topic.options), patience_s=120) as admin:
            last = [admin.last_position(each) for each in admin.topic_partitions()]
        return [None if each.entry < 0 else DataPosition(ledger=each.ledger, entry=each.entry) for each in last]


def test_a_late_record_of_an_older_table_does_not_bring_that_table_back(
    mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """Another connector instance learns later of the new table. Its last record of the older one may be the topic's last."""
    plain = data_topic(*WIDE)
    with client_of(plain.options["serviceUrl"]) as client:
        cleared = ClearedTopic(plain, client)
        topic = cleared.topic
        topic.write(written(row("p", 1, "x", 1), 5))
        cleared.define(FIRST_MS, OLD)
        topic.write(written(row("p", 2, "x", 2), 6, NEW), written(row("p", 3, "x", 3), 7, OLD))
        kept = mirror_of(topic)
        kept.run()
        assert keys(kept.rows()) == ["p/2=2"]
        cleared.define(SECOND_MS, NEW)
        assert keys(kept.wanted()) == keys(kept.fresh()) == ["p/2=2"]


def test_truncated_rows_are_deletions_and_each_of_them_stands_once(
    mirror_of: MirrorOf, data_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A truncation comes within a micro-batch whose run fails: each deletion is in change log and history once."""
    plain = data_topic(*WIDE, partitions=2)
    with client_of(plain.options["serviceUrl"]) as client:
        cleared = ClearedTopic(plain, client)
        topic = cleared.topic
        kept = mirror_of(topic)
        topic.write(*records_before(FIRST_MS))
        kept.run()  # There is no topic of schema changes yet.
        topic.write(before(FIRST_MS, row("p4", 1, "x", 4)))
        cleared.clear("truncation", FIRST_MS)
        topic.write(before(SECOND_MS, row("p0", 1, "x", 100)), before(SECOND_MS, row("p5", 1, "x", 5)))
        left = ["future/1=9", "p0/1=100", "p5/1=5"]
        assert keys(kept.wanted()) == keys(kept.fresh()) == left
        with stopped_after("history"):
            kept.run()
        with caplog.at_level(logging.WARNING, "spark_bridge"):
            kept.run()
        assert keys(kept.rows()) == left
        assert kept.replayed() == kept.open_versions() == kept.rows()
        assert "the table was truncated at 2023-11-14T22:13:20.000Z; rows deleted: 6" in caplog.text
        _check_log(kept)


@pytest.mark.extended
def test_a_truncation_alone_a_drop_and_a_new_life(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """A truncation without later records, whose run fails, then a drop, and then a new table of the same name.

    A mirror that reads all of it in one run ends with the same rows; its change log has each insert and each deletion.
    """
    plain = data_topic(*WIDE, partitions=2)
    with client_of(plain.options["serviceUrl"]) as client:
        cleared = ClearedTopic(plain, client)
        topic = cleared.topic
        kept = mirror_of(topic)
        topic.write(*records_before(SECOND_MS))
        kept.run()
        cleared.clear("truncation", SECOND_MS)
        with stopped_after("history"):
            kept.run()
        assert [each.time_ms for each in kept.applied().clearing] == [SECOND_MS]
        assert kept.run().deleted == 5
        cleared.clear("drop", DROP_MS)
        assert keys(texts(latest_on_read(spark, topic.options, as_of="2090-01-01T00:00:00Z"))) == ["future/1=9"]
        assert kept.wanted() == kept.fresh() == []
        assert kept.run().deleted == 1
        assert kept.replayed() == kept.open_versions() == kept.rows() == []
        published = Published(spark, topic, kept)
        published.run()
        assert published.folded() == []
        assert published.replayed()[1].count("d") == 6

        topic.write(written(row("p0", 1, "x", 200), DROP_MS * 1_000 + 1, NEW))
        for name, more in (("all", {}), ("rows alone", {"changelog": False, "history": False})):
            again = Mirror(spark, topic, tmp_path / name, topic.options)
            again.run(**more)
            assert keys(again.rows()) == ["p0/1=200"]
            if not more:
                assert again.replayed() == again.rows()
                assert again.table("changes").where("op = 'delete'").count() == 6


def _check_log(kept: Mirror) -> None:
    """Check change log and history of a key that was truncated and written again."""
    log = kept.table("changes").where("coalesce(before.pk, after.pk) = 'p0'").orderBy("epoch", "step")
    found = [(each.op, each.before and each.before.v, each.after and each.after.v) for each in log.collect()]
    assert found == [("insert", None, 0), ("delete", 0, None), ("insert", None, 100)]
    versions = kept.table("history").where("pk = 'p0'").orderBy("valid_from").collect()
    assert [(each.v, each.valid_to) for each in versions] == [(0, FIRST_MS * 1_000), (100, None)]
