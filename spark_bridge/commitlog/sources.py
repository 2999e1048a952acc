"""The Python data sources of this package, made known to a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge.reading import readers
from spark_bridge.spark_line import HAS_DATA_SOURCES
from spark_bridge.topics.options import option_texts

__all__ = ["commit_log", "register"]

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the formats `cassandra_cdc` and `cassandra_commitlog` known to a session.

    Raises ConfigError on PySpark 3.5, which has no Python data sources.
    """
    readers.register(spark)
    _register_archive(spark)


def commit_log(spark: SparkSession, options: Mapping[str, str | int | bool]) -> DataFrame:
    """The changes in an archive, as `spark.read.format("cassandra_commitlog")` gives them. Raises ConfigError.

    Filters on node, segment and table prune the segments if `spark.sql.python.filterPushdown.enabled` is true.
    """
    _register_archive(spark)
    given = option_texts(options)
    if spark.conf.get(_PUSHDOWN, "false") == "true":
        given.setdefault("filterPushdown", "true")
    return spark.read.format("cassandra_commitlog").options(**given).load()


def _register_archive(spark: SparkSession) -> None:
    """Make the format `cassandra_commitlog` known to a session. Raises ConfigError on PySpark 3.5."""
    if not HAS_DATA_SOURCES:
        raise ConfigError.of("format", "cassandra_commitlog needs Python data sources: PySpark 4.1 or later")
    from spark_bridge.commitlog.data_source import CommitLogDataSource

    readers.register_source(spark, CommitLogDataSource)
