"""Numbered records of a small table, read back by the data source `cassandra_cdc`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from tests.fixtures.spark import Record, table_schemas

__all__ = ["KEY_AND_VALUE", "names", "numbered", "read", "texts"]

KEY_AND_VALUE = table_schemas(partition_key={"id": "int"}, regular={"name": "text"})


def read(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    """Raw rows of the topic. `more`: further options."""
    return spark.read.format("cassandra_cdc").options(**options, **more).load()


def numbered(first: int, last: int) -> list[Record]:
    """Records with the keys `first` to `last`, named `row 1` and so on."""
    return [Record(key={"id": n}, value={"name": f"row {n}"}) for n in range(first, last + 1)]


def texts(first: int, last: int) -> list[str]:
    """The names of these records."""
    return [f"row {n}" for n in range(first, last + 1)]


def names(frame: DataFrame) -> list[str]:
    """The names of the records: the text after the two Avro bytes for "not null" and the length."""
    return [bytes(row.value)[2:].decode() for row in frame.collect()]
