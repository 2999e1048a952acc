"""Which line of Spark this interpreter has: 4.1 and later read topics by our data source, 3.5 by the pulsar-spark connector."""

from __future__ import annotations

from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql.types import DataType

__all__ = ["HAS_DATA_SOURCES", "error_condition", "try_cast"]

HAS_DATA_SOURCES: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
"""Python Data Sources with all that `cassandra_cdc` needs."""


def try_cast(column: Column, kind: DataType) -> Column:
    """A cast that gives null for what does not fit. On 3.5 it is the plain one, which does so unless ANSI mode is on."""
    if HAS_DATA_SOURCES:
        return column.try_cast(kind)
    return column.cast(kind)


def error_condition(error: PySparkException) -> str | None:
    """The name of Spark's error, such as PATH_NOT_FOUND."""
    name: str | None = error.getCondition() if HAS_DATA_SOURCES else error.getErrorClass()
    return name
