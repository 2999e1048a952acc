"""The Python Data Source `cassandra_cdc`: a data topic as a batch or a streaming DataFrame of raw columns.

Spark makes these objects in short-lived Python processes and pickles them into tasks, so they hold options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge.admin import PulsarAdmin
from spark_bridge.options import BridgeOptions
from spark_bridge.positions import BEGINNING, Position, parse_offsets, split_range
from spark_bridge.raw_columns import RAW_SCHEMA
from spark_bridge.topic_reader import TopicRange, read_range

__all__ = ["CassandraCdcDataSource", "plan_batch"]

Offsets = dict[str, str]


class CassandraCdcDataSource(DataSource):
    """`spark.read.format("cassandra_cdc")` and `spark.readStream.format("cassandra_cdc")`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassandra_cdc"

    def schema(self) -> StructType:
        """The raw contract, whatever the topic; wrong options are found here, at `load()`. Raises ConfigError."""
        BridgeOptions.from_mapping(self.options)
        return RAW_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch: from the starting offsets to the topic's end when the query is planned."""
        return _BatchReader(BridgeOptions.from_mapping(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Stream: from the starting offsets, or the checkpoint's, on."""
        return _StreamReader(BridgeOptions.from_mapping(self.options))


class _BatchReader(DataSourceReader):
    def __init__(self, options: BridgeOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ranges whose ends are fixed now, so that every attempt of a task reads the same."""
        return list(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        assert isinstance(partition, TopicRange)
        return read_range(self._options, partition)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, options: BridgeOptions) -> None:
        self._options = options

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a new query starts; decided once.

        The text differs from that of every later offset, so that Spark runs a first batch even if there is nothing to
        read: only with it the checkpoint keeps the start, and `latest` would otherwise be another one after a restart.
        """
        with self._admin() as admin:
            positions = _starting_positions(self._options, admin, admin.topic_partitions())
        return {topic: f">{position}" for topic, position in positions.items()}

    def latestOffset(self) -> Offsets:  # noqa: N802
        """The end of every topic partition that there is now."""
        with self._admin() as admin:
            return _texts({topic: admin.last_position(topic) for topic in admin.topic_partitions()})

    def partitions(self, start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[InputPartition]:
        """The ranges of one micro-batch; a topic partition that was added later is read from its beginning."""
        begins = {topic: Position.parse(text) for topic, text in start.items()}
        ends = {topic: Position.parse(text) for topic, text in end.items()}
        if self._options.min_partitions <= len(ends):
            return _ranges(self._options, begins, ends, None)
        with self._admin() as admin:
            return _ranges(self._options, begins, ends, admin)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        assert isinstance(partition, TopicRange)
        return read_range(self._options, partition)

    def commit(self, end: Mapping[str, str]) -> None:
        """Nothing to do: the checkpoint holds the offsets, and no subscription is kept in Pulsar."""

    def _admin(self) -> PulsarAdmin:
        # A running query sits out a restart of the broker.
        return PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds)


def plan_batch(options: BridgeOptions) -> list[TopicRange]:
    """What a batch read that is planned now reads. Raises ConfigError, TopicError, PulsarUnreachableError."""
    with PulsarAdmin(options) as admin:
        topics = admin.topic_partitions()
        starts = _starting_positions(options, admin, topics)
        return _ranges(options, starts, {topic: admin.last_position(topic) for topic in topics}, admin)


def _starting_positions(options: BridgeOptions, admin: PulsarAdmin, topics: Sequence[str]) -> dict[str, Position]:
    given: Mapping[str, Position | str]
    if options.starting_offsets in ("earliest", "latest"):
        given = dict.fromkeys(topics, options.starting_offsets)
    else:
        given = parse_offsets("startingOffsets", options.starting_offsets, topics)
    positions = {}
    for topic, start in given.items():
        if isinstance(start, Position):
            positions[topic] = start
        else:
            positions[topic] = BEGINNING if start == "earliest" else admin.last_position(topic)
    return positions


def _ranges(
    options: BridgeOptions, starts: Mapping[str, Position], ends: Mapping[str, Position], admin: PulsarAdmin | None
) -> list[TopicRange]:
    ranges = []
    parts = -(-options.min_partitions // len(ends))
    for topic, end in ends.items():
        start = starts.get(topic, BEGINNING)
        ledgers = admin.ledgers(topic) if admin is not None and parts > 1 and start < end else []
        ranges += [
            TopicRange(options.topic, topic, _partition_index(options.topic, topic), low, high)
            for low, high in split_range(start, end, ledgers, parts)
        ]
    return ranges


def _partition_index(topic: str, partition_topic: str) -> int:
    suffix = partition_topic.removeprefix(topic)
    return int(suffix.removeprefix("-partition-")) if suffix else -1


def _texts(positions: Mapping[str, Position]) -> Offsets:
    # Sorted, for Spark compares offsets as text.
    return {topic: str(positions[topic]) for topic in sorted(positions)}
