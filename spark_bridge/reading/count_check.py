"""Checks that a reader returned every record: reads the topic again with Pulsar's own client, and compares message ids.

This is for the pulsar-spark connector, which is known to have skipped messages. It works on any frame that has kept
`message_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.topic_reader import TopicRange, read_range
from spark_bridge.topics.options import BridgeOptions, option_texts
from spark_bridge.topics.positions import Position

__all__ = ["missing_records"]

_RANGE = "topic string, partition_topic string, partition int, low string, high string, ledger_ends array<string>"
_ID = "topic string, partition int, message_id string"


def missing_records(frame: DataFrame, options: Mapping[str, str | int | bool]) -> DataFrame:
    """Records of the topic that `frame` lacks: `topic`, `partition`, `message_id`. No rows if it has all of them.

    `options` determine the expected records, from the starting to the ending offsets. `frame` needs the columns `topic`
    and `message_id` of the raw contract. Raises ConfigError, TopicError, PulsarUnreachableError, DataLossError.
    """
    given = option_texts(options)
    spark = frame.sparkSession
    given.setdefault("minPartitions", str(spark.sparkContext.defaultParallelism))
    parsed = BridgeOptions.from_mapping(given)
    ranges = [
        (
            *(each.topic, each.partition_topic, each.partition, str(each.start), str(each.end)),
            [str(last) for last in each.ledger_ends],
        )
        for each in plan_batch(parsed)
    ]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for each in batch.to_pylist():
                start, end = Position.parse(each["low"]), Position.parse(each["high"])
                names = each["topic"], each["partition_topic"], each["partition"]
                ledger_ends = tuple(map(Position.parse, each["ledger_ends"]))
                for found in read_range(parsed, TopicRange(*names, start, end, ledger_ends)):
                    yield found.select(["topic", "partition", "message_id"])

    plan = spark.createDataFrame(ranges, _RANGE).repartition(max(1, len(ranges)))
    expected = plan.mapInArrow(read, _ID)
    mine = frame.select("topic", "message_id").where(F.col("message_id").isNotNull())
    return expected.join(mine, ["topic", "message_id"], "left_anti").select("topic", "partition", "message_id")
