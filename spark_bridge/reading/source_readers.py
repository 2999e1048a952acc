"""The readers of the data source `cassandra_cdc` that Spark calls when a query runs: one for batches, one for streams.

Spark makes these objects in short-lived Python processes and pickles them for tasks, so they hold options only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_bridge.reading.micro_batch import limited_ends, logged_end
from spark_bridge.reading.planning import plan_batch, plan_ranges, refuse_other_records, starting_positions
from spark_bridge.reading.topic_reader import TopicRange, read_range
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Offset, Position, creations_of, offset_of, positions_of, topic_of

__all__ = ["BatchReader", "StreamReader"]


class BatchReader(DataSourceReader):
    """Everything from the starting to the ending offsets."""

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges to read. Their ends are fixed now, so that every attempt of a task reads the same messages."""
        return _partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader):
    """The reader of a stream. It lives as long as the running query, in a separate process beside the driver.

    This class ends micro-batches as PySpark 4.1 asks for it; `AdmittedStreamReader` does it for later versions.
    """

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options
        self._known_topics: set[str] = set()  # topics whose schema was checked
        self._creations: dict[str, tuple[Position, str | None]] = {}

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Where a new query starts; decided once.

        The text differs from that of every later offset, so that Spark runs a first batch even if there is nothing to
        read. Only this batch writes the start to the checkpoint. Without it, `latest` would be another position after a
        restart.
        """
        with self._admin() as admin:
            positions = starting_positions(self._options, admin, self._topic_partitions(admin))
            self._hold(admin, positions)
            offset = offset_of(positions, self._created(admin, positions))
        return {topic: f">{text}" for topic, text in offset.items()}

    def latestOffset(self) -> Offset:  # noqa: N802
        """The current end of every topic partition, or an earlier position within the limits of a micro-batch."""
        with self._admin() as admin:
            ends = self._ends(admin)
            if self._options.is_limited:
                assert self._options.checkpoint_location is not None
                starts = logged_end(self._options.checkpoint_location, ends.keys())
                if starts is None:
                    starts = starting_positions(self._options, admin, list(ends))
                ends = limited_ends(self._options, starts, ends)
            return offset_of(ends, self._created(admin, ends))

    def partitions(self, start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[InputPartition]:
        """The ranges of one micro-batch. A topic partition that was added later is read from its beginning."""
        with self._admin() as admin:
            creations = [creations_of(start), creations_of(end)]
            return _partitions(plan_ranges(self._options, positions_of(start), positions_of(end), admin, creations))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)

    def commit(self, end: Mapping[str, str]) -> None:
        """Move the durable subscription, if the options name one, so that Pulsar may delete what was read.

        The offsets themselves are in the checkpoint.
        """
        if self._options.subscription is not None:
            with self._admin() as admin:
                self._hold(admin, positions_of(end))

    def _hold(self, admin: PulsarAdmin, positions: Mapping[str, Position]) -> None:
        if self._options.subscription is not None:
            for topic, position in positions.items():
                admin.keep_subscription(topic, self._options.subscription, position)

    def _ends(self, admin: PulsarAdmin) -> dict[str, Position]:
        return {topic: admin.last_position(topic) for topic in self._topic_partitions(admin)}

    def _created(self, admin: PulsarAdmin, ends: Mapping[str, Position]) -> Mapping[str, str]:
        """The topic partitions' creations.

        They are asked for again if an end is in another ledger, or before the last end.
        """
        for topic, end in ends.items():
            asked, creation = self._creations.get(topic, (BEGINNING, None))
            if creation is None or end.ledger != asked.ledger or end < asked:
                creation = admin.creation(topic)
            self._creations[topic] = end, creation
        return {topic: creation for topic, (_, creation) in self._creations.items() if topic in ends and creation}

    def _topic_partitions(self, admin: PulsarAdmin) -> list[str]:
        found = admin.topic_partitions()
        new = {topic_of(each)[0] for each in found} - self._known_topics
        self._known_topics |= refuse_other_records(admin, new)
        return found

    def _admin(self) -> PulsarAdmin:
        # A running query must survive a restart of the broker.
        return PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds)


def _partitions(ranges: Sequence[TopicRange]) -> list[InputPartition]:
    return [InputPartition(each) for each in ranges]


def _read(options: BridgeOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None or not isinstance(partition.value, TopicRange):
        return iter(())  # a partition that Spark plans itself if there is nothing to read
    return read_range(options, partition.value)
