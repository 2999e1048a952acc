"""Sends records to the partitions of a topic, on the executors: all of one partition in one task, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_bridge.topics.keyed_producer import KeyedProducer, KeyedRecord, KeyValueSchema
from spark_bridge.topics.options import BridgeOptions

__all__ = ["SENT", "RecordSender", "epoch_of", "producer_name"]

SENT: Final = "part int, sent bigint"
"""The rows that a task returns."""
_EPOCH_BITS: Final = 32
"""The number of bits for a record's place in its epoch; the higher bits of its number are the mirror's epoch."""
_COLUMNS: Final = ("part", "epoch", "step", "id", "key", "value", "writetime", "op")


@dataclass(frozen=True, slots=True)
class RecordSender:
    """Sends records to one topic. It has only plain values, because it is pickled into tasks."""

    options: BridgeOptions
    partitions: Sequence[str]
    producer: str
    schema: KeyValueSchema

    def run(self, records: DataFrame) -> int:
        """Send records. Return how many were sent, without those that the broker had before.

        The broker has all records when this returns. Raises PublishError within an error of Spark.
        """
        placed = records.select(*_COLUMNS).repartition(len(self.partitions), "part")
        ordered = placed.sortWithinPartitions("part", "epoch", "step", "id").drop("step", "id")
        mine = self

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return mine.send(batches)

        return sum(row.sent for row in ordered.mapInArrow(work, SENT).collect())

    def send(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the records of a task. Return one row for each topic partition: `part` and `sent`."""
        producer: KeyedProducer | None = None
        part, epoch, index = -1, -1, 0
        try:
            for batch in batches:
                columns = [
                    batch.column(name).to_pylist() for name in ("part", "epoch", "key", "value", "writetime", "op")
                ]
                for at, of_epoch, key, value, writetime, op in zip(*columns, strict=True):
                    if producer is None or at != part:
                        if producer is not None:
                            yield _finished(producer, part)
                        part, epoch = at, -1
                        topic = self.partitions[part]
                        producer = KeyedProducer(self.options, topic, producer_name(self.producer, part), self.schema)
                    epoch, index = of_epoch, index + 1 if of_epoch == epoch else 0
                    properties = {} if writetime is None else {"writetime": str(writetime)}
                    time_ms = None if writetime is None or writetime < 0 else writetime // 1000
                    producer.send(
                        KeyedRecord(epoch << _EPOCH_BITS | index, key, value, time_ms, {**properties, "op": op})
                    )
            if producer is not None:
                yield _finished(producer, part)
                producer = None
        finally:
            if producer is not None:
                producer.close()


def producer_name(job: str, part: int) -> str:
    """The name of the producer for one topic partition."""
    return f"{job}-{part}"


def epoch_of(number: int) -> int:
    """The mirror's epoch in a record's number; -1 for the number -1, which means that there is no record."""
    return number >> _EPOCH_BITS


def _finished(producer: KeyedProducer, part: int) -> pa.RecordBatch:
    try:
        producer.flush()
    finally:
        producer.close()
    return pa.RecordBatch.from_arrays(
        [pa.array([part], pa.int32()), pa.array([producer.sent], pa.int64())], ["part", "sent"]
    )
