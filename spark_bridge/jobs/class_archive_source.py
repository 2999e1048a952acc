"""A data source of a few numbers, with which `class_archive` loads the classes that read a topic. PySpark 4.1 or later."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["Numbers"]

_ROWS = 10


class _Batch(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(_ROWS)])


class _Stream(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"next": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"next": _ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["next"], end["next"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(*partition.value)])


class Numbers(DataSource):
    """Ten numbers in the column `id`, as a batch and as a stream."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassandra_cdc_numbers"

    def schema(self) -> str:
        """The column."""
        return "id long"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch."""
        return _Batch()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The reader of a stream."""
        return _Stream()
