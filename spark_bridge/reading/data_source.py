"""The Python Data Source `cassandra_cdc`: a data topic as a batch or a streaming DataFrame of raw columns.

Spark makes these objects in short-lived Python processes and pickles them into tasks, so they hold options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge.reading.micro_batch import limited_ends, logged_end
from spark_bridge.reading.planning import plan_batch, plan_ranges, refuse_other_records, starting_positions
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.reading.topic_reader import TopicRange, read_range
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import Position, topic_of

__all__ = ["CassandraCdcDataSource"]

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
        """Batch: from the starting offsets to the ending offsets, or the topic's end when the query is planned."""
        return _BatchReader(BridgeOptions.from_mapping(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Stream: from the starting offsets, or the checkpoint's, on."""
        return _StreamReader(BridgeOptions.from_mapping(self.options))


class _BatchReader(DataSourceReader):
    def __init__(self, options: BridgeOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ranges whose ends are fixed now, so that every attempt of a task reads the same."""
        return _partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader):
    """Lives as long as the running query, in a process of its own beside the driver."""

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options
        self._is_limited = bool(options.max_rows_per_trigger or options.max_bytes_per_trigger)
        self._known_topics: set[str] = set()  # whose schema was looked at

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a new query starts; decided once.

        The text differs from that of every later offset, so that Spark runs a first batch even if there is nothing to
        read: only with it the checkpoint keeps the start, and `latest` would otherwise be another one after a restart.
        """
        with self._admin() as admin:
            positions = starting_positions(self._options, admin, self._topic_partitions(admin))
            self._hold(admin, positions)
        return {topic: f">{position}" for topic, position in positions.items()}

    def latestOffset(self) -> Offsets:  # noqa: N802
        """The end of every topic partition that there is now, or as far as the limits of a micro-batch allow."""
        with self._admin() as admin:
            ends = {topic: admin.last_position(topic) for topic in self._topic_partitions(admin)}
            if self._is_limited:
                assert self._options.checkpoint_location is not None
                starts = logged_end(self._options.checkpoint_location, ends.keys())
                if starts is None:
                    starts = starting_positions(self._options, admin, list(ends))
                ends = limited_ends(self._options, starts, ends)
        return _texts(ends)

    def partitions(self, start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[InputPartition]:
        """The ranges of one micro-batch; a topic partition that was added later is read from its beginning."""
        begins = {topic: Position.parse(text) for topic, text in start.items()}
        ends = {topic: Position.parse(text) for topic, text in end.items()}
        with self._admin() as admin:
            return _partitions(plan_ranges(self._options, begins, ends, admin))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)

    def commit(self, end: Mapping[str, str]) -> None:
        """The checkpoint holds the offsets; a durable subscription lets go of what was read."""
        if self._options.subscription is not None:
            with self._admin() as admin:
                self._hold(admin, {topic: Position.parse(text) for topic, text in end.items()})

    def _hold(self, admin: PulsarAdmin, positions: Mapping[str, Position]) -> None:
        if self._options.subscription is not None:
            for topic, position in positions.items():
                admin.keep_subscription(topic, self._options.subscription, position)

    def _topic_partitions(self, admin: PulsarAdmin) -> list[str]:
        found = admin.topic_partitions()
        new = {topic_of(each)[0] for each in found} - self._known_topics
        self._known_topics |= refuse_other_records(admin, new)
        return found

    def _admin(self) -> PulsarAdmin:
        # A running query sits out a restart of the broker.
        return PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds)


def _partitions(ranges: Sequence[TopicRange]) -> list[InputPartition]:
    return [InputPartition(each) for each in ranges]


def _read(options: BridgeOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None or not isinstance(partition.value, TopicRange):
        return iter(())  # what Spark plans itself where there is nothing to read
    return read_range(options, partition.value)


def _texts(positions: Mapping[str, Position]) -> Offsets:
    # Sorted, for Spark compares offsets as text.
    return {topic: str(positions[topic]) for topic in sorted(positions)}
