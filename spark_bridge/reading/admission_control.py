"""The stream reader for PySpark 4.2 and later: Spark passes the query's position and the limit of a micro-batch.

pyspark.sql.streaming.datasource: ReadLimit, SupportsTriggerAvailableNow. On PySpark 4.1, this module cannot be
imported.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_bridge.reading.micro_batch import limited_ends
from spark_bridge.reading.source_readers import StreamReader
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import Offset, Position, offset_of, positions_of

__all__ = ["AdmittedStreamReader"]


class AdmittedStreamReader(StreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # 4.1, which mypy sees, has no such class
    """A stream that applies its limits from the position that Spark passes.

    With `availableNow`, it ends at the ends that were fixed at the start of the run.
    """

    def __init__(self, options: BridgeOptions) -> None:
        super().__init__(options)
        self._fixed_ends: dict[str, Position] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """The limit that Spark passes to `latestOffset`, unless its trigger reads everything at once.

        Spark has no limit of both rows and bytes. `latestOffset` applies both if the options have both.
        """
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the ends of this run at the current ends of the topic partitions."""
        with self._admin() as admin:
            self._fixed_ends = self._ends(admin)

    def latestOffset(self, start: Mapping[str, str], limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802  # as 4.2 asks
        """The end of the micro-batch from `start`: the topic partitions' ends, or positions within the limits."""
        ends = self._fixed_ends
        with self._admin() as admin:
            if ends is None:
                ends = self._ends(admin)
            if not isinstance(limit, ReadAllAvailable):
                ends = limited_ends(self._options, positions_of(start), ends)
            return offset_of(ends, self._created(admin, ends))
