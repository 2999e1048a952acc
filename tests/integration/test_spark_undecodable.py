"""Records and topics that cannot be typed: an error of one line names them, or an option keeps them."""

from __future__ import annotations

import base64
import json

import pulsar as pulsar_client
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import schema_text
from spark_bridge import changes, current_table, raw_batch
from spark_bridge.errors import TopicError
from spark_bridge.rows.folding import all_records
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.servers.interface import PulsarServer
from tests.topics.client import client_of

pytestmark = pytest.mark.spark_line(">=4.1")

CLUSTERED = table_schemas(partition_key={"pk": "text"}, clustering={"ck": "int"}, regular={"v": "int"})
PLAIN = table_schemas(partition_key={"id": "int"}, regular={"b": "text", "old": "int"})


def test_an_undecodable_record_is_named_or_kept(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Bytes that are no Avro of the record's schema give an error with the message id, or by option a row in
    `_corrupt`."""
    topic = data_topic(*PLAIN)
    topic.write(Record(key={"id": 1}, value={"b": "good"}))
    cut, key = base64.b64encode(b"\x02\x0ax").decode(), base64.b64encode(b"\x04").decode()
    bad = [
        {"key": key, "value": cut, "properties": {}},
        {"key": base64.b64encode(b"\xff").decode(), "value": None, "properties": {}},
    ]
    texts = schema_text(PLAIN[0]), schema_text(PLAIN[1])
    ids = [each.removesuffix(":-1") for each in topic.writer.write_bytes(topic.name, *texts, bad)]
    topic.write(Record(key={"id": 3}, value={"b": "good"}))
    said = f"topic {topic.name}: the value of message {ids[0]} cannot be decoded by its schema version 0"
    with pytest.raises(PySparkException) as error:
        changes(spark, topic.options).where(f"message_id <> '{ids[1]}'").collect()
    assert said in str(error.value)
    with pytest.raises(PySparkException, match=f"the value of message {ids[0]} cannot be decoded"):
        current_table(spark, topic.options).collect()
    kept = changes(spark, {**topic.options, "corruptRows": "keep"}).orderBy("message_id")
    assert kept.select("key.id", "value.b", "_corrupt.key", "_corrupt.value").collect() == [
        Row(id=1, b="good", key=None, value=None),
        Row(id=2, b=None, key=b"\x04", value=b"\x02\x0ax"),
        Row(id=None, b=None, key=b"\xff", value=None),
        Row(id=3, b="good", key=None, value=None),
    ]
    assert [row.reason and row.reason[:40] for row in kept.select("_corrupt.reason").collect()] == [
        None,
        said[:40],
        said[:40],
        None,
    ]


def test_a_timestamp_that_spark_cannot_hold_is_named(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Such timestamps are reported at any depth, with their values, apart from undecodable Avro. A corrected row is in
    the table again."""
    place = UserType("shop", "place", ("street", "since"), (NativeType("text"), NativeType("timestamp")))
    columns = {"at": "timestamp", "home": "place", "seen": "list<timestamp>", "by_name": "map<text, frozen<place>>"}
    topic = data_topic(*table_schemas(partition_key={"id": "int"}, regular=columns, user_types={"place": place}))
    most, nanoseconds = 9_223_372_036_854_775, 1_700_000_000_000_000_000
    there = {"street": "Elm", "since": most}
    good: dict[str, AvroValue] = {"at": -most, "home": there, "seen": [0, most], "by_name": {"x": there}}
    bad: dict[str, AvroValue] = {
        "at": 0,
        "home": {**there, "since": nanoseconds},
        "seen": [0, -nanoseconds],
        "by_name": {"x": there, "y": {**there, "since": most + 1}},
    }
    ids = topic.write(Record(key={"id": 1}, value=good), Record(key={"id": 2}, value=bad))
    said = (
        f"topic {topic.name}: the value of message {ids[1].removesuffix(':-1')} has timestamps that do not fit Spark's TIMESTAMP "
        f"(at most {most} milliseconds before and after 1970): "
    )
    kept = changes(spark, {**topic.options, "corruptRows": "keep"}).orderBy("message_id")
    good_reason, bad_reason = [row.reason for row in kept.select("_corrupt.reason").collect()]
    assert good_reason is None
    assert bad_reason.startswith(said)
    assert json.loads(bad_reason.removeprefix(said).partition("; correct the row in Cassandra")[0]) == {
        "home": {"since": nanoseconds},
        "seen": [-nanoseconds],
        "by_name": {"y": {"since": most + 1}},
    }
    with pytest.raises(PySparkException) as error:
        current_table(spark, topic.options).collect()
    assert said in str(error.value)
    topic.write(Record(key={"id": 2}, value=good))
    assert current_table(spark, topic.options).where(f"unix_millis(at) = {-most}").count() == 2


@pytest.mark.parametrize("kind", ["row", "row_deletion"])
def test_an_undecodable_key_of_a_clustered_table_is_named(
    spark: SparkSession, data_topic: MakeTopic, kind: str
) -> None:
    """For such a table the key is decoded first, because it says which rows a record concerns."""
    topic = data_topic(*CLUSTERED)
    topic.write(Record(key={"pk": "a", "ck": 1}, value={"v": 1}))
    key, value = base64.b64encode(b"\xff").decode(), base64.b64encode(b"\x02\x02").decode()
    bad = {"key": key, "value": value if kind == "row" else None, "properties": {"kind": kind}}
    (written,) = topic.writer.write_bytes(topic.name, *map(schema_text, CLUSTERED), [bad])
    said = f"topic {topic.name}: the key of message {written.removesuffix(':-1')} cannot be decoded by its schema version 0"
    with pytest.raises(PySparkException) as error:
        current_table(spark, topic.options).collect()
    assert said in str(error.value)
    schemas = TopicSchemas.fetch(BridgeOptions.from_mapping(topic.options))
    with pytest.raises(PySparkException) as error:
        all_records(raw_batch(spark, topic.options), schemas).collect()
    assert said in str(error.value)


def test_a_topic_without_a_schema_is_named(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Nothing was published, so there are no columns yet."""
    topic = data_topic(*PLAIN)
    with pytest.raises(TopicError) as error:
        changes(spark, topic.options)
    assert str(error.value) == (
        f"topic {topic.name}: has no schema yet: the connector registers one with its first record"
    )


def test_a_topic_with_another_kind_of_schema_is_named(
    spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer
) -> None:
    """A topic of plain texts has no key and value columns."""
    topic = data_topic(*PLAIN)
    with client_of(pulsar.service_url) as client:
        client.create_producer(topic.name, schema=pulsar_client.schema.StringSchema()).close()
    with pytest.raises(TopicError) as error:
        changes(spark, topic.options)
    assert f"topic {topic.name}: schema version 0 is STRING; typed columns need KEY_VALUE SEPARATED AVRO" in str(
        error.value
    )
