"""The raw contract from the pulsar-spark connector 3.1.1.4, the reader on PySpark 3.5.

This module corrects what the connector does not report, or reports wrongly: a batch's end is fixed when it is
planned, a start is always exclusive, and each record's schema version is looked up. Options that the connector cannot
fulfil are refused: see docs/spark.md. Source read: github.com/streamnative/pulsar-spark at tag 3.1.1.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import pulsar
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import LongType

from schemas.errors import ConfigError, ConfigProblem
from schemas.record_properties import WRITETIME
from spark_bridge.errors import DataLossError, OtherTopicError
from spark_bridge.reading.planning import (
    ending_positions,
    is_of_topic,
    last_of,
    plan_ranges,
    refuse_other_records,
    starting_positions,
)
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.reading.schema_versions import VersionLookup
from spark_bridge.spark_line import try_cast
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import OAUTH2_PLUGIN, TLS_PLUGIN, BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Ledger, Position

__all__ = ["DEFAULT_SUBSCRIPTION", "connector_batch", "connector_stream"]

DEFAULT_SUBSCRIPTION: Final = "cassandra-cdc-spark"
"""Subscription of a stream whose options name none. Without it, the connector makes one for each run and leaves it."""

_PLACE: Final = ("ledger", "entry")
_NOTHING: Final = pulsar.MessageId(0, -1, -1, -1)  # an end that the connector takes for an empty partition
_TAG: Final = {"partition": 3 << 3, "batch_index": 4 << 3}


def connector_batch(spark: SparkSession, options: BridgeOptions) -> DataFrame:
    """Raw rows from the starting to the ending offsets, which are fixed now.

    Raises ConfigError, TopicError, PulsarUnreachableError, DataLossError.
    """
    settings = _settings(options)
    with PulsarAdmin(options) as admin:
        topics = _checked_topics(admin)
        starts = starting_positions(options, admin, topics)
        ends = ending_positions(options, admin, topics)
        planned = {each.partition_topic for each in plan_ranges(options, starts, ends, admin)}
        storage = {topic: admin.ledgers(topic) for topic in planned}
    last = {topic: _entry_at(ends[topic], ledgers) for topic, ledgers in storage.items()}
    wanted = {topic: end for topic, end in last.items() if end is not None and end > starts[topic]}
    if not wanted:
        return spark.createDataFrame([], RAW_SCHEMA)
    first = {topic: _entry_at(starts[topic], storage[topic]) for topic in wanted}
    given = {
        "startingOffsets": _offsets({topic: _message_id(topic, first.get(topic)) for topic in topics}),
        "endingOffsets": _offsets(
            {topic: _message_id(topic, wanted[topic]) if topic in wanted else _NOTHING for topic in topics}
        ),
    }
    frame = spark.read.format("pulsar").options(**settings, **given).load()
    return _raw(frame, options, {topic: starts[topic] for topic in wanted})


def connector_stream(spark: SparkSession, options: BridgeOptions) -> DataFrame:
    """A stream of raw rows, from the starting offsets or those of the checkpoint.

    Raises what `connector_batch` raises.
    """
    limits = {"maxRowsPerTrigger": options.max_rows_per_trigger, "maxBytesPerTrigger": options.max_bytes_per_trigger}
    refused = [
        ConfigProblem(
            option=name, reason="is not possible on PySpark 3.5: its connector reads all there is; leave it out"
        )
        for name, value in limits.items()
        if value is not None
    ]
    if refused:
        raise ConfigError(refused)
    settings = _settings(options)
    subscription = options.subscription or DEFAULT_SUBSCRIPTION
    starts: dict[str, Position] = {}
    with PulsarAdmin(options) as admin:
        topics = _checked_topics(admin)
        given = options.starting_offsets
        if given not in ("earliest", "latest"):
            starts = starting_positions(options, admin, topics)
            storage = {topic: admin.ledgers(topic) for topic in starts}
            first = {topic: _entry_at(position, storage[topic]) for topic, position in starts.items()}
            _refuse_gaps(starts, first, storage, options)
            given = _offsets({topic: _message_id(topic, each) for topic, each in first.items()})
        for topic in topics:
            admin.keep_subscription(topic, subscription, BEGINNING)
    settings |= {"startingOffsets": given, "predefinedSubscription": subscription}
    return _raw(spark.readStream.format("pulsar").options(**settings).load(), options, starts)


def _checked_topics(admin: PulsarAdmin) -> Sequence[str]:
    """The topic partitions. Topics with other records are refused here, because the connector accepts any topic."""
    refuse_other_records(admin, admin.topics())
    return admin.topic_partitions()


def _refuse_gaps(
    starts: Mapping[str, Position],
    first: Mapping[str, Position | None],
    storage: Mapping[str, Sequence[Ledger]],
    options: BridgeOptions,
) -> None:
    for topic, start in starts.items():
        if options.fail_on_data_loss and start.entry >= 0 and not is_of_topic(start, storage[topic], ()):
            raise OtherTopicError(topic, str(start), str(last_of(storage[topic])))
        if options.fail_on_data_loss and start.entry >= 0 and first[topic] is None:
            raise DataLossError(topic, str(start), "the first that is left")


def _entry_at(position: Position, ledgers: Sequence[Ledger]) -> Position | None:
    """The last existing entry at or before a position; None if there is none. The connector needs an existing entry."""
    for each in reversed(ledgers):
        last = min(position.entry, each.entries - 1) if each.ledger == position.ledger else each.entries - 1
        if each.ledger <= position.ledger and last >= 0:
            return Position(each.ledger, last)
    return None


def _message_id(topic: str, position: Position | None) -> pulsar.MessageId:
    if position is None:
        return pulsar.MessageId.earliest
    _, mark, partition = topic.rpartition("-partition-")
    return pulsar.MessageId(int(partition) if mark else -1, position.ledger, position.entry, -1)


def _offsets(ids: Mapping[str, pulsar.MessageId]) -> str:
    """Offsets in the form that the connector reads: the bytes of each message id as signed numbers."""
    return json.dumps(
        {topic: [byte - 256 if byte > 127 else byte for byte in each.serialize()] for topic, each in ids.items()}
    )


def _settings(options: BridgeOptions) -> dict[str, str]:
    if options.auth_plugin_class_name == OAUTH2_PLUGIN:
        reason = (
            "AuthenticationOAuth2 is not possible on PySpark 3.5: its connector's client (Pulsar 2.4) does not have it; use "
            "AuthenticationToken with a token's file, or PySpark 4.1"
        )
        raise ConfigError.of("authPluginClassName", reason)
    if options.auth_plugin_class_name == TLS_PLUGIN:
        pass  # its authParams only name files
    elif options.auth_params is not None and not options.auth_params.get_secret_value().startswith("file:"):
        reason = "must be file:///path on PySpark 3.5: its connector writes its options to the log"
        raise ConfigError.of("authParams", reason)
    topics = {"topic": options.topic, "topics": options.topics, "topicsPattern": options.topics_pattern}
    client = {
        "authPluginClassName": options.auth_plugin_class_name,
        "authParams": options.auth_params.get_secret_value() if options.auth_params else None,
        "tlsTrustCertsFilePath": options.tls_trust_certs_file_path,
        "tlsAllowInsecureConnection": "true" if options.tls_allow_insecure_connection else None,
        "tlsHostnameVerificationEnable": "true"
        if options.service_url.startswith("pulsar+ssl") and options.tls_hostname_verification_enable
        else None,
    }
    return {
        "service.url": options.service_url,
        "admin.url": options.admin_url,
        "allowDifferentTopicSchemas": "true",  # gives key and value as bytes, for any schema version
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        "pollTimeoutMs": str(options.operation_timeout_seconds * 1000),
        "pulsar.reader.receiverQueueSize": str(options.receiver_queue_size),
        **{name: each for name, each in topics.items() if each is not None},
        **{f"pulsar.client.{name}": each for name, each in client.items() if each is not None},
    }


def _raw(frame: DataFrame, options: BridgeOptions, starts: Mapping[str, Position]) -> DataFrame:
    """The connector's columns as the raw contract. Messages at or before `starts` are left out."""
    # Zeros after the message id: `from_avro` reads fields that the id does not have as zeros.
    padded = F.concat(F.col("__messageId"), F.unhex(F.lit("00" * 8)))
    decoded = frame.withColumn("id", from_avro(padded, _id_schema(), {"mode": "FAILFAST"}))
    placed = decoded.withColumns(
        {
            "ledger": _number("value1"),
            "entry": _number("value2"),
            "number": _optional_field("partition"),
            "batch_index": _optional_field("batch_index"),
        }
    )
    if starts:
        placed = placed.where(reduce(lambda kept, each: kept & each, [_is_after(*each) for each in starts.items()]))
    rows = placed.select(*_columns(), *_PLACE)
    lookup = VersionLookup(options)

    def looked_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return lookup.completed(batches)

    return rows.mapInArrow(looked_up, RAW_SCHEMA)


def _columns() -> list[Column]:
    place = F.concat_ws(":", "ledger", "entry", "number")
    value, properties = F.col("value"), F.col("__messageProperties")
    text = properties[WRITETIME]
    empty = F.create_map().cast(RAW_SCHEMA["properties"].dataType)
    key = F.coalesce("__key", F.raise_error(F.concat(F.lit("message "), place, F.lit(_NO_KEY), F.col("__topic"))))
    return [
        key.alias("key"),
        F.when(F.length(value) > 0, value).alias("value"),
        F.when(F.length(value) > 0, "u").otherwise("d").alias("op"),
        F.when(text.rlike("^[+-]?[0-9]{1,19}$"), try_cast(text, LongType())).alias("writetime"),
        F.col("__eventTime").alias("event_time"),
        F.regexp_replace("__topic", r"-partition-\d+$", "").alias("topic"),
        F.col("number").cast("int").alias("partition"),
        F.when(F.col("batch_index") < 0, place).otherwise(F.concat_ws(":", place, "batch_index")).alias("message_id"),
        F.lit(None).cast("bigint").alias("schema_version"),
        F.col("__publishTime").alias("publish_time"),
        F.coalesce(properties, empty).alias("properties"),
    ]


_NO_KEY: Final = " has no key: this is no topic of KEY_VALUE SEPARATED records: "


def _is_after(topic: str, start: Position) -> Column:
    ledger, entry = F.col("ledger"), F.col("entry")
    after = (ledger > start.ledger) | ((ledger == start.ledger) & (entry > start.entry))
    return (F.col("__topic") != topic) | after


def _id_schema() -> str:
    """Avro schema for MessageIdData of Pulsar's protocol: fields in order, each a tag and a varint.

    Avro reads each varint as zigzag, which `_number` reverses.
    """
    fields = [{"name": f"{what}{at}", "type": "long"} for at in (1, 2, 3, 4) for what in ("tag", "value")]
    return json.dumps({"type": "record", "name": "MessageIdData", "fields": fields})


def _number(field: str) -> Column:
    zigzag = F.col("id").getField(field)
    return F.shiftleft(zigzag, 1).bitwiseXOR(F.shiftright(zigzag, 63))


def _optional_field(name: str) -> Column:
    """The partition or the batch index. A message id leaves them out if they are -1."""
    found = F.lit(-1).cast("bigint")
    for at in (4, 3):
        found = F.when(_number(f"tag{at}") == _TAG[name], _number(f"value{at}")).otherwise(found)
    return found
