"""The readers of the data source `cassandra_cdc` that Spark calls when a query runs: one of batches, one of streams.

Spark makes these objects in short-lived Python processes and pickles them into tasks, so they hold options only.
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
        """Ranges whose ends are fixed now, so that every attempt of a task reads the same."""
        return _partitions(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader):
    """Lives as long as the running query, in a separate process beside the driver.

    How far a micro-batch goes is PySpark 4.1's way here; `AdmittedStreamReader` does it as later ones ask for it.
    """

    def __init__(self, options: BridgeOptions) -> None:
        self._options = options
        self._known_topics: set[str] = set()  # whose schema was looked at
        self._creations: dict[str, tuple[Position, str | None]] = {}

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Where a new query starts; decided once.

        The text differs from that of every later offset, so that Spark runs a first batch even if there is nothing to
        read: only with it the checkpoint keeps the start, and `latest` would otherwise be another one after a restart.
        """
        with self._admin() as admin:
            positions = starting_positions(self._options, admin, self._topic_partitions(admin))
            self._hold(admin, positions)
            offset = offset_of(positions, self._created(admin, positions))
        return {topic: f">{text}" for topic, text in offset.items()}

    def latestOffset(self) -> Offset:  # noqa: N802
        """The end of every topic partition that there is now, or as far as the limits of a micro-batch allow."""
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
        """The ranges of one micro-batch; a topic partition that was added later is read from its beginning."""
        with self._admin() as admin:
            creations = [creations_of(start), creations_of(end)]
            return _partitions(plan_ranges(self._options, positions_of(start), positions_of(end), admin, creations))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range."""
        return _read(self._options, partition)

    def commit(self, end: Mapping[str, str]) -> None:
        """The checkpoint holds the offsets; a durable subscription lets go of what was read."""
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
        """The topic partitions' creations; asked again when an end is in another ledger, or not behind the one before."""
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
        # A running query sits out a restart of the broker.
        return PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds)


def _partitions(ranges: Sequence[TopicRange]) -> list[InputPartition]:
    return [InputPartition(each) for each in ranges]


def _read(options: BridgeOptions, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if partition is None or not isinstance(partition.value, TopicRange):
        return iter(())  # what Spark plans itself where there is nothing to read
    return read_range(options, partition.value)
