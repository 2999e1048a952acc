"""The version line of Spark in this interpreter: its features, and the jars that it needs.

4.1 and later read topics with our data source, 3.5 with the pulsar-spark connector. From 4.2 on, Spark passes the
query's position to a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql.types import DataType

from schemas.errors import ConfigError

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "HAS_DATA_SOURCES",
    "HAS_ICEBERG",
    "LINE",
    "Jars",
    "error_condition",
    "iceberg_jar",
    "line_jars",
    "try_cast",
]

_VERSION: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))
LINE: Final = ".".join(map(str, _VERSION))
"""The version line, such as `4.1`."""

HAS_DATA_SOURCES: Final = _VERSION >= (4, 1)
"""Spark has Python Data Sources with everything that `cassandra_cdc` needs."""

HAS_ADMISSION_CONTROL: Final = _VERSION >= (4, 2)
"""Spark passes the query's position to a Python Data Source, which fixes the end of an `availableNow` run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Maven coordinates of spark-avro, Delta Lake, Apache Iceberg, and the connector for a line without data sources.

    None: the line has no such jar, or does not need it.
    """

    spark_avro: str
    delta: str
    iceberg: str | None = None
    connector: str | None = None


# spark-avro for 4.1.1 runs on all versions of 4.1 and 4.2. Newer builds of the connector fail on tombstones or do not
# run.
_JARS: Final[Mapping[str, Jars]] = {
    "3.5": Jars(
        spark_avro="org.apache.spark:spark-avro_2.12:3.5.7",
        delta="io.delta:delta-spark_2.12:3.3.2",
        iceberg="org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0",
        connector="io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4",
    ),
    "4.1": Jars(
        spark_avro="org.apache.spark:spark-avro_2.13:4.1.1",
        delta="io.delta:delta-spark_4.1_2.13:4.4.0",
        iceberg="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    ),
    "4.2": Jars(
        spark_avro="org.apache.spark:spark-avro_2.13:4.1.1",
        delta="io.delta:delta-spark_4.2_2.13:4.4.0",
    ),
}


HAS_ICEBERG: Final = LINE in _JARS and _JARS[LINE].iceberg is not None
"""Iceberg exists for this line. Without it, a mirror can only keep Delta tables."""


def line_jars() -> Jars:
    """The jars of this line. Raises ConfigError if none are known to run on it."""
    found = _JARS.get(LINE)
    if found is None:
        reason = (
            f"{pyspark.__version__} is of a line that no jars are known for; install one of {', '.join(_JARS)} "
            f"(pip install 'pyspark=={list(_JARS)[-1]}.*'), or give the files (jars of session_builder, --jars)"
        )
        raise ConfigError.of("pyspark", reason)
    return found


def iceberg_jar() -> str:
    """Coordinates of Apache Iceberg for this line. Raises ConfigError if there is none."""
    found = line_jars().iceberg
    if found is None:
        reason = (
            f"there is none for Spark {LINE}; keep Delta tables (--format delta), or run on PySpark 4.1 "
            "(pip install 'pyspark==4.1.*'), where Iceberg tables are read and written"
        )
        raise ConfigError.of("iceberg", reason)
    return found


def try_cast(column: Column, kind: DataType) -> Column:
    """A cast that gives null for values that do not fit.

    On 3.5, it is the plain cast, which does so without ANSI mode.
    """
    if HAS_DATA_SOURCES:
        return column.try_cast(kind)
    return column.cast(kind)


def error_condition(error: PySparkException) -> str | None:
    """The name of Spark's error condition, such as PATH_NOT_FOUND."""
    name: str | None = error.getCondition() if HAS_DATA_SOURCES else error.getErrorClass()
    return name
