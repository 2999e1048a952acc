"""Raw rows of data topics, from the reader that this Spark has. Jobs and views need not know which one it is.

PySpark 4.1 and later: the data source `cassandra_cdc`. PySpark 3.5: the pulsar-spark connector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge.java_classes import java_class
from spark_bridge.spark_line import HAS_DATA_SOURCES
from spark_bridge.topics.options import BridgeOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource  # PySpark 3.5 has none

__all__ = ["raw_batch", "raw_stream", "register", "register_source"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("cassandra_cdc")` known to a session. Raises ConfigError on PySpark 3.5."""
    if not HAS_DATA_SOURCES:
        reason = (
            "of this PySpark knows no Python data sources; use spark_bridge.raw_batch and raw_stream, or PySpark 4.1"
        )
        raise ConfigError.of("format", reason)
    from spark_bridge.reading.data_source import CassandraCdcDataSource

    register_source(spark, CassandraCdcDataSource)


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a Python data source known to a session. Does nothing if the session has it: Spark warns of a second one."""
    if _has_source(spark, source.name()):
        return
    with _as_active(spark):
        spark.dataSource.register(source)


def _has_source(spark: SparkSession, name: str) -> bool:
    """Return True if the session has a Python data source of this name."""
    if getattr(spark, "_jvm", None) is None:  # a session of Spark Connect does not tell
        return False
    session = spark._jsparkSession  # noqa: SLF001  (PySpark has no public way)
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def raw_batch(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Raw rows from the starting to the ending offsets. Raises ConfigError, or Spark's error that contains it.

    On PySpark 3.5, this also raises TopicError, PulsarUnreachableError and DataLossError. On later versions, the query
    raises them.
    """
    if not HAS_DATA_SOURCES:
        from spark_bridge.reading.pulsar_connector import connector_batch

        return connector_batch(spark, BridgeOptions.from_mapping(options))
    register(spark)
    return spark.read.format("cassandra_cdc").options(**options).load()


def raw_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A stream of raw rows, from the starting offsets or those of the checkpoint. Raises what `raw_batch` raises."""
    if not HAS_DATA_SOURCES:
        from spark_bridge.reading.pulsar_connector import connector_stream

        return connector_stream(spark, BridgeOptions.from_mapping(options))
    register(spark)
    return spark.readStream.format("cassandra_cdc").options(**options).load()


@contextmanager
def _as_active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active session of this thread for the time of the block.

    Before Spark registers a source, it looks up the name in the active session. If the active session has the name but
    `spark` does not, Spark takes it for one of its own sources, which cannot be replaced (DATA_SOURCE_ALREADY_EXISTS).
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:  # a session of Spark Connect: the server looks it up
        yield
        return
    sessions = java_class(jvm, "org.apache.spark.sql.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001  (PySpark has no public way)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
